"""S3, Google Cloud Storage and Azure, through obstore.

Credentials, region and endpoint are found as each cloud's own tools find them: in the environment, or by the identity
of the pod or machine.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import obstore
from obstore import exceptions
from obstore.store import from_url

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.listing import Entry, Listing, below
from shoal_runtime.storage.redaction import safe
from shoal_runtime.storage.store import StoreAway
from shoal_runtime.unpacking import CHUNK_BYTES
from shoal_schema.resource.locations import parse

PATIENCE: Final[Any] = {
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=60),
    # Of a whole request, which may bring gigabytes; how long a model may take is counted outside.
    "timeout": timedelta(days=1),
}
RETRIES: Final[Any] = {"max_retries": 2, "retry_timeout": timedelta(seconds=60)}
ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")


class Objects:
    """A key, or all keys below it, in one bucket or container."""

    def __init__(self, store: Any, key: str, shown: str) -> None:
        self._store = store
        self._key = key
        self.shown = shown

    def list(self, at_most: int) -> Listing:
        """Return the object of that very key, or else what lies below it."""
        with _mapped(self.shown):
            if self._key and not self._key.endswith("/") and (entry := self._object()) is not None:
                return Listing([entry], entry.path)
            found: list[Entry] = []
            for chunk in obstore.list(self._store, prefix=self._key or None):
                found += below(self._key, map(_entry, chunk))
                if len(found) > at_most:
                    break
        return Listing(found)

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield an object's content, if it still bears the tag that it was listed with."""
        with _mapped(f"{self.shown} ({entry.path})"):
            options: Any = {"if_match": entry.validator} if entry.validator else {}
            for chunk in obstore.get(self._store, entry.key, options=options).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def _object(self) -> Entry | None:
        try:
            return _entry(obstore.head(self._store, self._key))
        except FileNotFoundError:
            return None


def open_store(uri: str) -> Objects:
    """Return the objects that a `s3://`, `gs://`, `az://` or `abfss://` URI names."""
    location = parse(uri)
    plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
    options: Any = {"allow_http": plain, **PATIENCE}
    with _mapped(uri):
        store = from_url(f"{location.scheme}://{location.authority}", client_options=options, retry_config=RETRIES)
    return Objects(store, location.path, uri)


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"].rpartition("/")[2], meta["size"], meta["e_tag"] or "", meta["path"])


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    """Say in a sentence what the store's library raises."""
    try:
        yield
    except FileNotFoundError:
        raise LoadError(f"there is nothing at {what}") from None
    except (exceptions.UnauthenticatedError, PermissionError) as error:
        raise LoadError(f"{what} may not be read with the credentials that were found: {_first(error)}") from None
    except exceptions.PreconditionError:
        raise LoadError(f"{what} changed while it was downloaded") from None
    except exceptions.BaseError as error:
        if " 404 " in str(error):  # listing a bucket that is not there: no error of its own in the library
            raise LoadError(f"there is nothing at {what}") from None
        raise StoreAway(_first(error)) from None


def _first(error: Exception) -> str:
    return safe(str(error), os.environ)
