"""S3, Google Cloud Storage and Azure, through obstore.

Credentials, region and endpoint are found as each cloud's own tools find them: in the environment, or by the identity
of the pod or machine.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import obstore
from obstore import exceptions
from obstore.store import from_url

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.listing import Entry, Listing, below, bounded
from shoal_runtime.storage.redaction import safe
from shoal_runtime.storage.store import GIVEN_IN, StoreAway
from shoal_runtime.storage.trust import roots, tls_fault
from shoal_runtime.unpacking import CHUNK_BYTES
from shoal_schema.resource.locations import parse, scheme_of

PATIENCE: Final[Any] = {
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=60),
    # Of a whole request, which may bring gigabytes; how long a model may take is counted outside.
    "timeout": timedelta(days=1),
}
RETRIES: Final[Any] = {"max_retries": 2, "retry_timeout": timedelta(seconds=60)}
ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")
IDENTITY: Final = re.compile("performing token request|/latest/(api/token|meta-data)")
"""Of a machine or a pod: it is asked for when the environment says nothing."""
_AZURE: Final = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN"
CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SKIP_SIGNATURE=true where everybody may read)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (GOOGLE_SKIP_SIGNATURE=true where everybody may read)",
    "az": _AZURE,
    "abfss": _AZURE,
}
NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_SERVER: Final = re.compile(r"https://([^/\s]+)")
_STATUS: Final = re.compile(r"status code: (\d{3}[ A-Za-z]*)")


class Objects:
    """A key, or all keys below it, in one bucket or container."""

    def __init__(self, store: Any, key: str, shown: str) -> None:
        self._store = store
        self._key = key
        self.shown = shown

    def list(self, at_most: int) -> Listing:
        """Return the object of that very key, or else what lies below it."""
        with mapped(self.shown):
            if self._key and not self._key.endswith("/") and (entry := self._object()) is not None:
                return Listing([entry], entry.path)
            chunks = obstore.list(self._store, prefix=self._key or None)
            found = (entry for chunk in chunks for entry in below(self._key, map(_entry, chunk)))
            return Listing(list(bounded(found, at_most)))

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield an object's content, if it still bears the tag that it was listed with."""
        with mapped(f"{self.shown} ({entry.path})"):
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
    return Objects(open_bucket_of(uri), parse(uri).path, uri)


def open_bucket_of(uri: str) -> Any:
    """Return the bucket or container that a URI names, as the library has it.

    Raises:
        LoadError: a variable that it reads makes no sense.
    """
    location = parse(uri)
    plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
    options: Any = {"allow_http": plain, **PATIENCE}
    if named := roots():
        options["root_certificate"] = named
    try:
        return from_url(f"{location.scheme}://{location.authority}", client_options=options, retry_config=RETRIES)
    except exceptions.BaseError as error:
        wrong = safe(_last(str(error)), os.environ)
        raise LoadError(f"{uri} cannot be read: {wrong}; look at {_credentials(uri)}") from None


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"].rpartition("/")[2], meta["size"], meta["e_tag"] or "", meta["path"])


class NotAllowed(LoadError):
    """The store knows the credentials not, or not any more, or does not let them read this."""


@contextmanager
def mapped(what: str) -> Iterator[None]:
    """Say in a sentence what the store's library raises."""
    try:
        yield
    except FileNotFoundError as error:
        raise _absent(what, str(error)) from None
    except exceptions.PreconditionError:
        raise LoadError(f"{what} changed while it was downloaded: try again") from None
    except exceptions.BaseError as error:
        raise told_of(what, str(error)) from None
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        # What the library never expects of its settings. It is no Exception, and would end the process.
        raise LoadError(
            f"{what} cannot be read: {safe(str(error), os.environ)}; look at {_credentials(what)}"
        ) from None


def told_of(what: str, text: str) -> Exception:
    """Return what an error's text says. The library has no kinds for most of it, nor for a bucket that is not there."""
    status = _STATUS.search(text)
    credentials = _credentials(what)
    server = _SERVER.search(text)
    if said := tls_fault(server[1] if server else "the store", text):
        return StoreAway(said)
    if IDENTITY.search(text):
        return StoreAway(f"no credentials were found: set {credentials}, or give the pod an identity")
    for sign, sentence in (
        ("invalid path", f"{what} holds a key that would land outside its folder: remove it, or name another folder"),
        ("redirect without LOCATION", f"{what} lies in another region: set AWS_REGION to that of the bucket"),
        ("status code: 401", f"{what} may not be read with the credentials that were found: look at {credentials}"),
        ("status code: 403", f"{what} may not be read with the credentials that were found: look at {credentials}"),
    ):
        if sign in text:
            return NotAllowed(sentence) if "status code" in sign else LoadError(sentence)
    if "status code: 404" in text:
        return _absent(what, text)
    return StoreAway(f"the store answered {status[1].strip()}" if status else safe(_last(text), os.environ))


def _absent(what: str, text: str) -> LoadError:
    if any(code in text for code in NO_BUCKET):
        return LoadError(
            f"the store has no bucket {parse(what).authority}: correct its name, or the address of the store"
        )
    return LoadError(f"there is nothing at {what}")


def _credentials(uri: str) -> str:
    return f"{CREDENTIALS[scheme_of(uri)]}, {GIVEN_IN}"


def _last(text: str) -> str:
    """Return the cause of all that an error's first line tells."""
    return text.strip().partition("\n")[0].rpartition(" - ")[2]
