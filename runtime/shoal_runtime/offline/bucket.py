"""Input and output directories in an object store: S3, Google Cloud Storage, Azure."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import obstore

from shoal_runtime.errors import LoadError
from shoal_runtime.offline.errors import DirectoryUnavailable, InvalidSettings, JobError, unwritten
from shoal_runtime.offline.shards import InputFile, matching
from shoal_runtime.storage.objects import AccessDenied, error_of, open_bucket_of, translated_errors
from shoal_runtime.storage.store import StoreUnavailable, check_environment
from shoal_schema.resource.locations import LocationError, parse, scheme_of

READ_BYTES: Final = 8 * 2**20
_AGAIN: Final = "Run the job again: it resumes where it stopped"


class BucketDirectory:
    """Objects of a bucket whose keys begin with one prefix, or one object."""

    def __init__(self, store: Any, prefix: str, shown: str) -> None:
        self._store = store
        self._prefix = prefix.rstrip("/")
        self.shown = shown

    def files(self, pattern: str) -> list[InputFile]:
        """Return the objects below the prefix that match a pattern, or the one object."""
        with _job_errors(self.shown), translated_errors(self.shown):
            if self._prefix and not pattern:
                with suppress(FileNotFoundError):
                    found = obstore.head(self._store, self._prefix)
                    self._prefix, _, name = self._prefix.rpartition("/")
                    return [InputFile(name, found["size"], _tag(found))]
            root = f"{self._prefix}/" if self._prefix else ""
            listed = (each for chunk in obstore.list(self._store, prefix=self._prefix or None) for each in chunk)
            # Keys such as in-old/ share the prefix's letters but not its directory.
            files = [
                InputFile(each["path"].removeprefix(root), each["size"], _tag(each))
                for each in listed
                if each["path"].startswith(root)
            ]
            # Some tools create empty keys that end in a slash, to show directories.
            return matching([each for each in files if each.path and not each.path.endswith("/")], pattern)

    def open(self, file: InputFile, ahead_bytes: int = READ_BYTES) -> BinaryIO:
        """Open an object for reading in pieces of ``ahead_bytes``.

        Raises:
            JobError: the object has changed since it was listed.
        """
        what = f"{self.shown} ({file.path})"
        with _job_errors(self.shown), translated_errors(what):
            # A file that was replaced would mix rows of two versions.
            if _tag(obstore.head(self._store, self._key(file.path))) != file.validator:
                raise JobError(f"{what} changed while it was read. Run the job again")
            opened = obstore.open_reader(self._store, self._key(file.path), buffer_size=ahead_bytes)
            return cast(BinaryIO, _ObjectReader(opened, what))

    def read(self, name: str) -> bytes | None:
        """Return the content of an object; None if there is no such object."""
        with _job_errors(self.shown), translated_errors(f"{self.shown} ({name})"):
            try:
                return bytes(obstore.get(self._store, self._key(name)).bytes())
            except FileNotFoundError:
                return None

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        with _job_errors(self.shown), translated_errors(f"{self.shown} ({name})"):
            obstore.put(self._store, self._key(name), content)

    def put_new(self, name: str, content: bytes) -> bool:
        """Write an object if its key does not exist yet.

        Returns: Whether the object was written.
        """
        with _job_errors(self.shown), translated_errors(f"{self.shown} ({name})"):
            try:
                # The store decides between workers that put the same key at once.
                obstore.put(self._store, self._key(name), content, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                return False
            return True

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield a temporary local path; at exit, upload the file at this path."""
        try:
            with tempfile.TemporaryDirectory(prefix="shoal-batch-") as directory:
                path = Path(directory, "part")
                yield path
                with _job_errors(self.shown), translated_errors(f"{self.shown} ({name})"):
                    obstore.put(self._store, self._key(name), path)
        except OSError as error:
            raise unwritten(error.filename or f"{tempfile.gettempdir()} (TMPDIR)", error) from error

    def leave(self) -> None:
        """Do nothing: a store has no incomplete objects."""

    def sweep(self) -> None:
        """Do nothing: a store has no incomplete objects."""

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name


class _ObjectReader:
    """Read-only file object over an object of a store; the store's errors become `JobError`."""

    closed = False

    def __init__(self, opened: Any, what: str) -> None:
        self._opened = opened
        self._what = what

    def read(self, size: int | None = None) -> bytes:
        """Return at most ``size`` bytes from the current position."""
        with _job_errors(self._what), translated_errors(self._what):
            try:
                return bytes(self._opened.read(size) if size is not None and size >= 0 else self._opened.read())
            except OSError as error:  # the library raises one type for every error of the store
                raise error_of(self._what, str(error)) from None

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the read position; return the new one."""
        return int(self._opened.seek(offset, whence))

    def tell(self) -> int:
        """Return the read position in bytes."""
        return int(self._opened.tell())

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False: the object is read-only."""
        return False

    def flush(self) -> None:
        """Do nothing: the object is read-only."""

    def close(self) -> None:
        """Close the object."""
        self.closed = True
        self._opened.close()

    def __enter__(self) -> "_ObjectReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_bucket(uri: str) -> BucketDirectory:
    """Return the directory at an `s3://`, `gs://`, `az://` or `abfss://` URI."""
    with _job_errors(uri):
        check_environment(scheme_of(uri))
        location = parse(uri)
        return BucketDirectory(open_bucket_of(uri), location.path, uri)


def _tag(found: Any) -> str:
    """Return an object's entity tag without quotes, which stores add inconsistently."""
    return (found["e_tag"] or "").strip('"')


@contextmanager
def _job_errors(what: str) -> Iterator[None]:
    """Raise errors of the object store as `JobError`."""
    try:
        yield
    except AccessDenied as error:
        raise DirectoryUnavailable(f"{error}. {_AGAIN}") from None
    except LocationError as error:
        raise InvalidSettings(str(error)) from None
    except LoadError as error:
        raise JobError(str(error)) from None
    except StoreUnavailable as error:
        raise DirectoryUnavailable(f"{what}: {error}. {_AGAIN}") from None
