"""Store for models in object stores: S3, Google Cloud Storage and Azure, through obstore.

Credentials, region and endpoint come from the environment, as for the clouds' own tools, or from the identity of the
pod or machine.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import obstore
from obstore import exceptions
from obstore.store import from_url

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.listing import ListedFile, Listing, below, bounded
from shoal_runtime.storage.redaction import redacted_line
from shoal_runtime.storage.store import GIVEN_IN, StoreUnavailable
from shoal_runtime.storage.trust import root_certificates, tls_fault
from shoal_runtime.storage.unpacking import CHUNK_BYTES
from shoal_schema.resource.locations import parse, scheme_of

PATIENCE: Final[Any] = {
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=60),
    # Of a whole request, which may transfer gigabytes; the time for a model has its own limit.
    "timeout": timedelta(days=1),
}
RETRIES: Final[Any] = {"max_retries": 2, "retry_timeout": timedelta(seconds=60)}
ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")
IDENTITY: Final = re.compile("performing token request|/latest/(api/token|meta-data)")
"""Requests for the identity of a machine or pod, made when the environment has no credentials."""
_AZURE: Final = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN"
CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SKIP_SIGNATURE=true for a public bucket)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (GOOGLE_SKIP_SIGNATURE=true for a public bucket)",
    "az": _AZURE,
    "abfss": _AZURE,
}
NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_SERVER: Final = re.compile(r"https://([^/\s]+)")
_STATUS: Final = re.compile(r"status code: (\d{3}[ A-Za-z]*)")


class BucketObjects:
    """Objects of a bucket or container: one key, or all keys in a directory."""

    def __init__(self, store: Any, key: str, shown: str) -> None:
        self._store = store
        self._key = key
        self.shown = shown

    def list(self, at_most: int) -> Listing:
        """List the object with the key, or else the objects in the directory."""
        with translated_errors(self.shown):
            if self._key and not self._key.endswith("/"):
                with suppress(FileNotFoundError):
                    entry = _entry(obstore.head(self._store, self._key))
                    return Listing([entry], entry.path)
            # Lazy: a bucket may have millions of keys.
            chunks = obstore.list(self._store, prefix=self._key or None)
            found = (entry for chunk in chunks for entry in below(self._key, map(_entry, chunk)))
            return Listing(list(bounded(found, at_most)))

    def read(self, entry: ListedFile) -> Iterator[bytes]:
        """Yield the content of an object, if its entity tag is the listed one."""
        with translated_errors(f"{self.shown} ({entry.path})"):
            options: Any = {"if_match": entry.validator} if entry.validator else {}
            for chunk in obstore.get(self._store, entry.key, options=options).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)


def open_store(uri: str) -> BucketObjects:
    """Return the objects at an `s3://`, `gs://`, `az://` or `abfss://` URI."""
    return BucketObjects(open_bucket_of(uri), parse(uri).path, uri)


def open_bucket_of(uri: str) -> Any:
    """Return obstore's object for the bucket or container of a URI.

    Raises:
        LoadError: an environment variable is invalid.
    """
    location = parse(uri)
    # obstore refuses plain HTTP unless it is allowed explicitly.
    plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
    options: Any = {"allow_http": plain, **PATIENCE}
    if named := root_certificates():
        options["root_certificate"] = named
    try:
        return from_url(f"{location.scheme}://{location.authority}", client_options=options, retry_config=RETRIES)
    except exceptions.BaseError as error:
        wrong = redacted_line(_last(str(error)), os.environ)
        raise LoadError(f"{uri} cannot be read: {wrong}. Check {_credentials(uri)}") from None


def _entry(meta: Any) -> ListedFile:
    return ListedFile(meta["path"].rpartition("/")[2], meta["size"], meta["e_tag"] or "", meta["path"])


class AccessDenied(LoadError):
    """The store does not recognize the credentials, or they do not permit reading."""


@contextmanager
def translated_errors(what: str) -> Iterator[None]:
    """Raise errors of obstore as `LoadError` or `StoreUnavailable`."""
    try:
        yield
    except FileNotFoundError as error:
        raise _absent(what, str(error)) from None
    except exceptions.PreconditionError:
        raise LoadError(f"{what} changed during the download. Try again") from None
    except exceptions.BaseError as error:
        raise error_of(what, str(error)) from None
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        # A Rust panic about the settings. It is no Exception, and would end the process.
        raise LoadError(
            f"{what} cannot be read: {redacted_line(str(error), os.environ)}. Check {_credentials(what)}"
        ) from None


def error_of(what: str, text: str) -> Exception:
    """Return the error for an error message of obstore, which has no types for most errors."""
    status = _STATUS.search(text)
    credentials = _credentials(what)
    server = _SERVER.search(text)
    if fault := tls_fault(server[1] if server else "the store", text):
        return StoreUnavailable(fault)
    if IDENTITY.search(text):
        return StoreUnavailable(f"no credentials were found. Set {credentials}, or give the pod an identity")
    for sign, message in (
        ("invalid path", f"{what} has a key outside of its directory. Remove it, or name another directory"),
        ("redirect without LOCATION", f"{what} is in another region. Set AWS_REGION to that of the bucket"),
        ("status code: 401", f"the credentials do not allow reading {what}. Check {credentials}"),
        ("status code: 403", f"the credentials do not allow reading {what}. Check {credentials}"),
    ):
        if sign in text:
            return AccessDenied(message) if "status code" in sign else LoadError(message)
    if "status code: 404" in text:
        return _absent(what, text)
    return StoreUnavailable(
        f"the store returned {status[1].strip()}" if status else redacted_line(_last(text), os.environ)
    )


def _absent(what: str, text: str) -> LoadError:
    if any(code in text for code in NO_BUCKET):
        return LoadError(
            f"the bucket {parse(what).authority} does not exist. Correct its name, or the address of the store"
        )
    return LoadError(f"there are no files at {what}")


def _credentials(uri: str) -> str:
    return f"{CREDENTIALS[scheme_of(uri)]}, {GIVEN_IN}"


def _last(text: str) -> str:
    return text.strip().partition("\n")[0].rpartition(" - ")[2]
