"""A folder of an object store: S3, Google Cloud Storage, Azure."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import obstore

from shoal_runtime.errors import LoadError
from shoal_runtime.offline.errors import JobError, PlaceAway, unwritten
from shoal_runtime.offline.shards import File, matching
from shoal_runtime.storage.objects import NotAllowed, mapped, open_bucket_of, told_of
from shoal_runtime.storage.store import StoreAway, check_environment
from shoal_schema.resource.locations import parse, scheme_of

READ_BYTES: Final = 8 * 2**20


class BucketPlace:
    """Keys below one prefix of one bucket."""

    def __init__(self, store: Any, prefix: str, shown: str) -> None:
        self._store = store
        self._prefix = prefix.rstrip("/")
        self.shown = shown

    def files(self, pattern: str) -> list[File]:
        """Return the objects below, or the one object of that very key."""
        with _told(self.shown), mapped(self.shown):
            if self._prefix and not pattern and (one := self._one()) is not None:
                return [one]
            root = f"{self._prefix}/" if self._prefix else ""
            found = (each for chunk in obstore.list(self._store, prefix=self._prefix or None) for each in chunk)
            files = [_file(each, root) for each in found if each["path"].startswith(root)]
            return matching([each for each in files if each.path and not each.path.endswith("/")], pattern)

    def _one(self) -> File | None:
        try:
            known = obstore.head(self._store, self._prefix)
        except FileNotFoundError:
            return None
        folder, _, name = self._prefix.rpartition("/")
        self._prefix = folder
        return File(name, known["size"], _tag(known))

    def open(self, file: File, ahead_bytes: int = READ_BYTES) -> BinaryIO:
        """Return an object's content, read by pieces, if it is still what was listed."""
        with _told(self.shown), mapped(f"{self.shown} ({file.path})"):
            known = obstore.head(self._store, self._key(file.path))
            if _tag(known) != file.validator:
                raise JobError(f"{self.shown} ({file.path}) was changed while it was being read: run the job again")
            opened = obstore.open_reader(self._store, self._key(file.path), buffer_size=ahead_bytes)
            return cast(BinaryIO, _Reading(opened, f"{self.shown} ({file.path})"))

    def read(self, name: str) -> bytes | None:
        """Return what was put."""
        with _told(self.shown), mapped(f"{self.shown} ({name})"):
            try:
                return bytes(obstore.get(self._store, self._key(name)).bytes())
            except FileNotFoundError:
                return None

    def put(self, name: str, content: bytes) -> None:
        """Put an object."""
        with _told(self.shown), mapped(f"{self.shown} ({name})"):
            obstore.put(self._store, self._key(name), content)

    def put_new(self, name: str, content: bytes) -> bool:
        """Put an object if there is none of that key: the store decides between several."""
        with _told(self.shown), mapped(f"{self.shown} ({name})"):
            try:
                obstore.put(self._store, self._key(name), content, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                return False
            return True

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Give a path of this machine; what is written there is put when it is whole."""
        with _scratch() as path:
            yield path
            with _told(self.shown), mapped(f"{self.shown} ({name})"):
                obstore.put(self._store, self._key(name), path)

    def leave(self) -> None:
        """Do nothing: what is not put whole is not there."""

    def sweep(self) -> None:
        """Do nothing: likewise."""

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name


class _Reading:
    """An object being read, whose errors are sentences."""

    closed = False

    def __init__(self, opened: Any, what: str) -> None:
        self._opened = opened
        self._what = what

    def read(self, size: int | None = None) -> bytes:
        """Return bytes from where it is."""
        with _told(self._what), mapped(self._what):
            try:
                return bytes(self._opened.read(size) if size is not None and size >= 0 else self._opened.read())
            except OSError as error:  # its library has one kind here for whatever the store answered
                raise told_of(self._what, str(error)) from None

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go elsewhere."""
        return int(self._opened.seek(offset, whence))

    def tell(self) -> int:
        """Return where it is."""
        return int(self._opened.tell())

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can go elsewhere."""
        return True

    def writable(self) -> bool:
        """Return that nothing can be written."""
        return False

    def flush(self) -> None:
        """Do nothing: nothing is written."""

    def close(self) -> None:
        """Let go of the object."""
        self.closed = True
        self._opened.close()

    def __enter__(self) -> "_Reading":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_bucket(uri: str) -> BucketPlace:
    """Return the place that a `s3://`, `gs://`, `az://` or `abfss://` URI names."""
    with _told(uri):
        check_environment(scheme_of(uri))
        location = parse(uri)
        return BucketPlace(open_bucket_of(uri), location.path, uri)


def _file(known: Any, root: str) -> File:
    return File(known["path"].removeprefix(root), known["size"], _tag(known))


def _tag(known: Any) -> str:
    """Return what changes with an object's content; some stores quote it in one answer and not in another."""
    return (known["e_tag"] or "").strip('"')


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Say in the job's words what a store's library raises."""
    try:
        yield
    except NotAllowed as error:
        raise PlaceAway(f"{error}; run the job again, it goes on where it was") from None
    except LoadError as error:
        raise JobError(str(error)) from None
    except StoreAway as error:
        raise PlaceAway(f"{what}: {error}; run the job again, it goes on where it was") from None


@contextmanager
def _scratch() -> Iterator[Path]:
    """Give a path for a file that goes elsewhere when it is whole."""
    try:
        with tempfile.TemporaryDirectory(prefix="shoal-batch-") as folder:
            yield Path(folder, "part")
    except OSError as error:
        raise unwritten(error.filename or f"{tempfile.gettempdir()} (TMPDIR)", error) from error
