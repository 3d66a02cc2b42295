"""The seam between a model's URI and the store that keeps it."""

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, Protocol

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.listing import Entry, Listing
from shoal_schema.resource.credentials import fault
from shoal_schema.resource.locations import scheme_of


class StoreAway(Exception):
    """The store or the network may do better next time."""


class Store(Protocol):
    """One model in a store. Every method may raise `StoreAway`, or `LoadError` where trying again is in vain."""

    shown: str
    """Its URI, without what may be secret."""

    def list(self, at_most: int) -> Listing:
        """Return what there is; raise `TooMany` where that is more files, or files and folders, than ``at_most``."""

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield a file's content as it was listed.

        Raises:
            LoadError: it has changed since.
        """


GIVEN_IN: Final = "in the environment, or in the Secret of model.secretName"
"""Credentials."""
STORES: Final[Mapping[str, tuple[str, str]]] = {
    "s3": ("shoal_runtime.storage.objects", "s3"),
    "gs": ("shoal_runtime.storage.objects", "gs"),
    "az": ("shoal_runtime.storage.objects", "az"),
    "abfss": ("shoal_runtime.storage.objects", "az"),
    "hf": ("shoal_runtime.storage.hub", "hf"),
    "models": ("shoal_runtime.storage.mlflow", "runtime"),
    "runs": ("shoal_runtime.storage.mlflow", "runtime"),
}
"""Scheme -> module, which is imported when it is needed, and the extra that brings its library."""


def open_store(uri: str) -> Store:
    """Return the store that keeps what ``uri`` names.

    Raises:
        LoadError: the scheme's library is not installed, a variable that it reads or the URI makes no sense.
    """
    check_environment(scheme_of(uri))
    module, extra = STORES[scheme_of(uri)]
    try:
        open_it: Callable[[str], Any] = import_module(module).open_store
    except ImportError as error:
        raise LoadError(f"{scheme_of(uri)}:// needs {error.name}: pip install 'shoal[{extra}]'") from None
    store: Store = open_it(uri)
    return store


def check_environment(scheme: str) -> None:
    """Look at the variables before a library does, which would tell their values.

    Raises:
        LoadError: one cannot be right.
    """
    if wrong := fault(scheme, os.environ):
        raise LoadError(f"{wrong} ({GIVEN_IN})")
