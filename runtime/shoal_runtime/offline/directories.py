"""Directories of input rows and of results: local, or in an object store.

A file is written atomically: a local file is renamed once it is on disk, an object is written by a single put.
"""

import fcntl
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol
from uuid import uuid4

import pyarrow as pa

from shoal_runtime.offline.errors import InvalidSettings, JobError, unwritten
from shoal_runtime.offline.shards import InputFile, matching, split_pattern
from shoal_runtime.packages import install_extras
from shoal_schema.fields.redaction import redacted_value
from shoal_schema.resource.locations import LocationError, local_path, scheme_of, shown
from shoal_schema.resource.offline import IN_WORDS, STORES

PARTIAL: Final = ".begun-"
"""Prefix of files that are being written."""
UNPACKED_BYTES: Final = 2**16


class Directory(Protocol):
    """A local directory or a prefix of an object store. Every method may raise `JobError`."""

    shown: str
    """Its address, without secrets."""

    def files(self, pattern: str) -> list[InputFile]:
        """Return the files that match a pattern, sorted by name."""

    def open(self, file: InputFile, ahead_bytes: int = ...) -> BinaryIO:
        """Open a listed file for reading; the file is seekable.

        Args:
            file: a file that `files` returned.
            ahead_bytes: bytes to fetch from an object store at a time.

        Raises:
            JobError: the file has changed since it was listed.
        """

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""

    def put(self, name: str, content: bytes) -> None:
        """Write a small file."""

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a small file if it does not exist yet.

        Only one of several concurrent calls writes.

        Returns: Whether the file was written.
        """

    def writing(self, name: str) -> Any:
        """Return a context manager that yields a temporary path to write.

        At exit the file gets its final name.
        """

    def leave(self) -> None:
        """Remove incomplete files of this process."""

    def sweep(self) -> None:
        """Remove incomplete files of processes that have ended."""


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
        """Write a file if its name does not exist yet.

        Returns: Whether the file was written.
        """
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


def open_outputs(uri: str, errors_uri: str | None) -> tuple[Directory, Directory | None]:
    """Return the directory of results, and the directory of failed rows if it is separate.

    Raises:
        InvalidSettings: an address is a file or invalid, or both addresses are the same.
    """
    results, failures = _open_output(uri), _open_output(errors_uri) if errors_uri else None
    if failures and failures.shown.rstrip("/") == results.shown.rstrip("/"):
        raise InvalidSettings(f"{errors_uri} is the directory of the results. Give --errors another directory")
    return results, failures


def _open_output(uri: str) -> Directory:
    place = open_directory(uri)
    if isinstance(place, LocalDirectory) and place.is_file:
        raise InvalidSettings(f"{uri} is a file. Name a directory for the results")
    return place


def open_input(uri: str, written: Sequence[Directory]) -> tuple[Directory, list[InputFile]]:
    """Return the directory and the files of an input, without files below output directories.

    Args:
        uri: address of the input.
        written: output directories.

    Raises:
        InvalidSettings: there are no files.
    """
    folder, pattern = split_pattern(uri)
    place = open_directory(folder)
    outer = f"{place.shown.rstrip('/')}/"
    # Results below the input's directory must not be read as rows.
    own = tuple(f"{each.shown.rstrip('/').removeprefix(outer)}/" for each in written if each.shown.startswith(outer))
    found = [each for each in place.files(pattern) if not each.path.startswith(own)]
    if not found:
        raise InvalidSettings(f"there are no files at {redacted_value(uri)}. Correct the input")
    return place, found


def open_directory(uri: str) -> Directory:
    """Return the directory or the single file at an address.

    Raises:
        InvalidSettings: the address is invalid, or the library for its store is not installed.
    """
    scheme = scheme_of(uri)
    try:
        if not scheme:
            return LocalDirectory(Path(os.path.abspath(uri)))
        if scheme == "file":
            return LocalDirectory(Path(os.path.abspath(local_path(uri))))
    except LocationError as error:
        raise InvalidSettings(str(error)) from None
    if scheme not in STORES:
        raise InvalidSettings(f"{shown(uri)} is not an address: expected a path, or a URI that begins with {IN_WORDS}")
    try:
        from shoal_runtime.offline.bucket import open_bucket  # noqa: PLC0415 (its library is an extra)
    except ImportError as error:
        raise InvalidSettings(f"{scheme}:// needs {error.name}. {install_extras(scheme)}") from None
    return open_bucket(uri)


def decompressed(opened: BinaryIO, path: str) -> Any:
    """Return an open file's content as a stream, decompressed if gzipped.

    The path of a gzip file ends in ``.gz``. Closing the stream, or dropping it, closes the file too.
    """
    if not path.lower().endswith(".gz"):
        return opened
    unpacked: Any = pa.CompressedInputStream(opened, "gzip")
    return io.BufferedReader(unpacked, UNPACKED_BYTES)
