"""Interface of the stores of models."""

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, Protocol

from shoal_runtime.errors import LoadError
from shoal_runtime.packages import install_extras
from shoal_runtime.storage.listing import ListedFile, Listing
from shoal_schema.resource.credentials import fault
from shoal_schema.resource.locations import scheme_of


class StoreUnavailable(Exception):
    """A store or the network fails, perhaps temporarily."""


class Store(Protocol):
    """Files of one model in a store. Methods raise `StoreUnavailable`, or `LoadError` if a retry is useless."""

    shown: str
    """Its URI, without secrets."""

    def list(self, at_most: int) -> Listing:
        """List the model's files.

        Raises:
            TooManyFiles: there are more than ``at_most`` files and directories.
        """

    def read(self, entry: ListedFile) -> Iterator[bytes]:
        """Yield the content of a listed file.

        Raises:
            LoadError: the file has changed since it was listed.
        """


GIVEN_IN: Final = "in the environment, or in the Secret of model.secretName"
"""Location of credentials, for messages."""
STORES: Final[Mapping[str, tuple[str, str]]] = {
    "s3": ("shoal_runtime.storage.objects", "s3"),
    "gs": ("shoal_runtime.storage.objects", "gs"),
    "az": ("shoal_runtime.storage.objects", "az"),
    "abfss": ("shoal_runtime.storage.objects", "az"),
    "hf": ("shoal_runtime.storage.hub", "hf"),
    "models": ("shoal_runtime.storage.mlflow", "runtime"),
    "runs": ("shoal_runtime.storage.mlflow", "runtime"),
}
"""By scheme: the module, imported on demand, and the extra that installs its library."""


def open_store(uri: str) -> Store:
    """Return the store for a URI.

    Raises:
        LoadError: the library for the URI's scheme is not installed, or a variable or the URI is invalid.
    """
    check_environment(scheme_of(uri))
    module, extra = STORES[scheme_of(uri)]
    try:
        open_it: Callable[[str], Any] = import_module(module).open_store
    except ImportError as error:
        raise LoadError(f"{scheme_of(uri)}:// needs {error.name}. {install_extras(extra)}") from None
    store: Store = open_it(uri)
    return store


def check_environment(scheme: str) -> None:
    """Check a store's environment variables, because its library's errors would contain their values.

    Raises:
        LoadError: a variable is invalid.
    """
    if wrong := fault(scheme, os.environ):
        raise LoadError(f"{wrong} ({GIVEN_IN})")
