"""A folder of this machine, or one file of it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from shoal_runtime.offline.errors import JobError, unwritten
from shoal_runtime.offline.shards import File, matching

BEGUN: Final = ".begun-"


class FolderPlace:
    """A folder of this machine, or one file of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.parent if path.is_file() else path
        self._under_way: set[Path] = set()
        self.is_file = path.is_file()
        self.shown = str(path)

    def files(self, pattern: str) -> list[File]:
        """Return the files."""
        if self.is_file:
            return [self._file(self._path)]
        with self._told("read"):
            return matching([self._file(each) for each in _below(self._folder) if each.is_file()], pattern)

    def _file(self, path: Path) -> File:
        known = path.stat()
        return File(path.relative_to(self._folder).as_posix(), known.st_size, f"{known.st_mtime_ns}")

    def open(self, file: File, ahead_bytes: int = 0) -> BinaryIO:
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
        with self._told("written"), self._begun(name) as begun:
            begun.write_bytes(content)
            _settle(begun)
            try:
                os.link(begun, self._folder / name)
            except FileExistsError:
                return False
            _settle(begun.parent)
            return True

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Give a path beside; what is written there gets its name when all of it is on disk."""
        with self._told("written"), self._begun(name) as begun:
            yield begun
            _settle(begun)
            begun.replace(self._folder / name)
            _settle(begun.parent)

    def leave(self) -> None:
        """Remove what this process has begun and will not end."""
        for begun in tuple(self._under_way):
            begun.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what others had begun, and who have ended since: a lock that is held by nobody says so."""
        for begun in self._folder.glob(f"**/{BEGUN}*"):
            with suppress(OSError), begun.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                begun.unlink(missing_ok=True)

    @contextmanager
    def _begun(self, name: str) -> Iterator[Path]:
        """Give a name beside: hidden, and nobody else's, so that two attempts at one shard do not meet."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = path.parent / f"{BEGUN}{path.name}-{uuid4().hex[:12]}"
        # Before it is there: a signal may come at any line.
        self._under_way.add(begun)
        try:
            with begun.open("xb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield begun
        finally:
            begun.unlink(missing_ok=True)
            self._under_way.discard(begun)

    @contextmanager
    def _told(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = error.filename or self._folder
            if done == "written":
                raise unwritten(where, error) from error
            raise JobError(f"{where} cannot be {done}: {error.strerror or error}") from error


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder; links are followed, but into no folder that was seen on the way down."""
    seen = {folder: {folder.resolve()}}
    for directory, folders, names in os.walk(folder, followlinks=True):
        here = Path(directory)
        ways = seen.pop(here, set())
        folders[:] = [name for name in folders if (here / name).resolve() not in ways]
        seen.update({here / name: ways | {(here / name).resolve()} for name in folders})
        yield from (here / name for name in names)


def _settle(path: Path) -> None:
    """Have the disk hold what was written."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
