"""Where rows lie and answers go: a folder of this machine, or of an object store.

What is written is there whole or not at all: here by a name that is changed when all is on disk, in a store by one put.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol
from uuid import uuid4

from shoal_runtime.errors import LoadError
from shoal_runtime.offline.errors import JobError, WrongSettings
from shoal_runtime.offline.shards import File, matching, split_pattern
from shoal_runtime.storage.store import StoreAway
from shoal_schema.resource.locations import LocationError, local_path, scheme_of
from shoal_schema.resource.offline import IN_WORDS, STORES

BEGUN: Final = ".begun-"


class Place(Protocol):
    """A folder. Every method may raise `JobError`, a sentence."""

    shown: str
    """Its address, without what may be secret."""

    def files(self, pattern: str) -> list[File]:
        """Return the files below that a pattern means, in order of their names."""

    def open(self, file: File) -> BinaryIO:
        """Return a file's content, as it was listed, which can be sought."""

    def read(self, name: str) -> bytes | None:
        """Return what was put under a name, or None."""

    def put(self, name: str, content: bytes) -> None:
        """Put a small file."""

    def put_new(self, name: str, content: bytes) -> bool:
        """Put a small file unless there is one; return whether this call did. Of several at once one does."""

    def writing(self, name: str) -> Any:
        """Return a context that gives a path to write a file at; at its end the file stands under the name."""


def open_input(uri: str) -> tuple[Place, list[File]]:
    """Return the folder that an input names, and the files in it that are meant.

    Raises:
        WrongSettings: there are none.
    """
    folder, pattern = split_pattern(uri)
    place = open_place(folder)
    try:
        found = place.files(pattern)
    except FileNotFoundError:
        found = []
    if not found:
        raise WrongSettings(f"there are no files at {uri}: correct the input")
    return place, found


def open_place(uri: str) -> Place:
    """Return the folder, or the one file, at an address.

    Raises:
        WrongSettings: the address is none.
    """
    scheme = scheme_of(uri)
    try:
        if not scheme:
            return LocalPlace(Path(uri).absolute())
        if scheme == "file":
            return LocalPlace(Path(local_path(uri)))
    except LocationError as error:
        raise WrongSettings(str(error)) from None
    if scheme not in STORES:
        raise WrongSettings(f"{uri} must be a path, or begin with one of {IN_WORDS}")
    try:
        from shoal_runtime.offline.bucket import open_bucket  # noqa: PLC0415 (its library is an extra)
    except ImportError as error:
        raise WrongSettings(f"{scheme}:// needs {error.name}: pip install 'shoal[{scheme}]'") from None
    return open_bucket(uri)


class LocalPlace:
    """A folder of this machine, or one file of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.parent if path.is_file() else path
        self.shown = str(path)

    def files(self, pattern: str) -> list[File]:
        """Return the files."""
        if self._path.is_file():
            return [self._file(self._path)]
        found = [Path(folder, name) for folder, _, names in os.walk(self._folder, followlinks=True) for name in names]
        with self._told("read"):
            return matching([self._file(each) for each in found if each.is_file()], pattern)

    def _file(self, path: Path) -> File:
        known = path.stat()
        return File(path.relative_to(self._folder).as_posix(), known.st_size, f"{known.st_mtime_ns}")

    def open(self, file: File) -> BinaryIO:
        """Open a file, if it is still the one that was listed."""
        with self._told("read"):
            opened = (self._folder / file.path).open("rb")
            known = os.fstat(opened.fileno())
        if (known.st_size, f"{known.st_mtime_ns}") != (file.size_bytes, file.validator):
            opened.close()
            raise JobError(f"{self._folder / file.path} was changed while it was being read: run the job again")
        return opened

    def read(self, name: str) -> bytes | None:
        """Return what was put."""
        with self._told("read"):
            try:
                return (self._folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def put(self, name: str, content: bytes) -> None:
        """Write a file beside, and give it its name."""
        with self.writing(name) as path:
            path.write_bytes(content)

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file beside, and give it the name if nobody has it."""
        with self._told("written"):
            begun = self._begin(name)
            try:
                begun.write_bytes(content)
                _settle(begun)
                os.link(begun, self._folder / name)
            except FileExistsError:
                return False
            finally:
                begun.unlink(missing_ok=True)
            _settle((self._folder / name).parent)
            return True

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Give a path beside; what is written there gets its name when all of it is on disk."""
        with self._told("written"):
            begun = self._begin(name)
            try:
                yield begun
                _settle(begun)
                begun.replace(self._folder / name)
            finally:
                begun.unlink(missing_ok=True)
            _settle((self._folder / name).parent)

    def _begin(self, name: str) -> Path:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Hidden, and nobody else's: two attempts at one shard do not meet.
        return path.parent / f"{BEGUN}{path.name}-{uuid4().hex[:12]}"

    @contextmanager
    def _told(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = error.filename or self._folder
            raise JobError(f"{where} cannot be {done}: {error.strerror or error}") from error


def _settle(path: Path) -> None:
    """Have the disk hold what was written."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def told_store(what: str) -> Iterator[None]:
    """Say in the job's words what a store's library raises."""
    try:
        yield
    except LoadError as error:
        raise JobError(str(error)) from None
    except StoreAway as error:
        raise JobError(f"{what}: {error}; run the job again, it goes on where it was") from None


@contextmanager
def scratch_file() -> Iterator[Path]:
    """Give a path for a file that goes elsewhere when it is whole."""
    with tempfile.TemporaryDirectory(prefix="shoal-batch-") as folder:
        yield Path(folder, "part")
