"""Input and output directories on the local file system."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from shoal_runtime.offline.errors import JobError, unwritten
from shoal_runtime.offline.shards import InputFile, matching

PARTIAL: Final = ".begun-"
"""Prefix of files that are being written."""


class LocalDirectory:
    """A local directory, or a single local file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._directory = path.parent if path.is_file() else path
        self._under_way: set[Path] = set()
        self.is_file = path.is_file()
        self.shown = str(path)

    def files(self, pattern: str) -> list[InputFile]:
        """Return the files that match a pattern, sorted by name."""
        if self.is_file:
            return [self._file(self._path)]
        with self._job_errors(written=False):
            # Links are followed, but not into a directory that is above them.
            found: list[Path] = []
            seen = {self._directory: {self._directory.resolve()}}
            for parent, folders, names in os.walk(self._directory, followlinks=True):
                here = Path(parent)
                above = seen.pop(here, set())
                folders[:] = [name for name in folders if (here / name).resolve() not in above]
                seen.update({here / name: above | {(here / name).resolve()} for name in folders})
                found += (here / name for name in names)
            return matching([self._file(each) for each in found if each.is_file()], pattern)

    def _file(self, path: Path) -> InputFile:
        stat = path.stat()
        return InputFile(path.relative_to(self._directory).as_posix(), stat.st_size, f"{stat.st_mtime_ns}")

    def open(self, file: InputFile, ahead_bytes: int = 0) -> BinaryIO:
        """Open a listed file.

        Raises:
            JobError: the file has changed since it was listed.
        """
        path = self._directory / file.path
        with self._job_errors(written=False):
            opened = path.open("rb")
            stat = os.fstat(opened.fileno())
        if (stat.st_size, f"{stat.st_mtime_ns}") != (file.size_bytes, file.validator):
            opened.close()
            raise JobError(f"{path} changed while it was read. Run the job again")
        return opened

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""
        with self._job_errors(written=False):
            try:
                return (self._directory / name).read_bytes()
            except FileNotFoundError:
                return None

    def put(self, name: str, content: bytes) -> None:
        """Write a small file atomically: under a hidden name, then renamed."""
        with self.writing(name) as path:
            path.write_bytes(content)

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file unless its name exists; return whether it was written."""
        with self._job_errors(written=True), self._begin(name) as begun:
            # Complete and on disk before it gets its name.
            begun.write_bytes(content)
            _sync(begun)
            try:
                # A link fails where the name exists; a rename would replace the file.
                os.link(begun, self._directory / name)
            except FileExistsError:
                return False
            _sync(begun.parent)
            return True

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield a hidden path; at exit, flush the file to disk and rename it to ``name``."""
        with self._job_errors(written=True), self._begin(name) as begun:
            yield begun
            _sync(begun)
            begun.replace(self._directory / name)
            _sync(begun.parent)

    def leave(self) -> None:
        """Remove incomplete files of this process."""
        for begun in tuple(self._under_way):
            begun.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove incomplete files of processes that have ended, whose locks are free."""
        for begun in self._directory.glob(f"**/{PARTIAL}*"):
            with suppress(OSError), begun.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                begun.unlink(missing_ok=True)

    @contextmanager
    def _begin(self, name: str) -> Iterator[Path]:
        """Yield a unique hidden path, so that two attempts at one shard write different files."""
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = path.parent / f"{PARTIAL}{path.name}-{uuid4().hex[:12]}"
        # Noted before it exists: a signal may arrive at any line.
        self._under_way.add(begun)
        try:
            with begun.open("xb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield begun
        finally:
            begun.unlink(missing_ok=True)
            self._under_way.discard(begun)

    @contextmanager
    def _job_errors(self, *, written: bool) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = error.filename or self._directory
            if written:
                raise unwritten(where, error) from error
            raise JobError(f"{where} cannot be read: {error.strerror or error}") from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
