"""A folder of this machine, or one file of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from shoal_runtime.offline.errors import JobError
from shoal_runtime.offline.shards import File, matching

BEGUN: Final = ".begun-"


class FolderPlace:
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
