"""Directories of rows and results: local, or in an object store.

Files are written atomically: locally by a rename after it is on disk, in a store by a single put.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from shoal_runtime.offline.directory import LocalDirectory
from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.shards import InputFile, split_pattern
from shoal_schema.redaction import redacted_value
from shoal_schema.resource.locations import LocationError, local_path, scheme_of, shown
from shoal_schema.resource.offline import IN_WORDS, STORES


class Directory(Protocol):
    """A directory. Every method may raise `JobError`."""

    shown: str
    """Its address, without secrets."""

    def files(self, pattern: str) -> list[InputFile]:
        """Return the files that match a pattern, in order of their names."""

    def open(self, file: InputFile, ahead_bytes: int = ...) -> BinaryIO:
        """Open a listed file for reading; the file is seekable.

        Args:
            file: one of `files`.
            ahead_bytes: size of a read from a store.

        Raises:
            JobError: the file has changed since it was listed.
        """

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None."""

    def put(self, name: str, content: bytes) -> None:
        """Write a small file."""

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a small file unless it exists; return whether this call did. Of concurrent calls, exactly one does."""

    def writing(self, name: str) -> Any:
        """Return a context that yields a temporary path; at its end the file is renamed to its final name."""

    def leave(self) -> None:
        """Remove the files that this process has begun and will not complete."""

    def sweep(self) -> None:
        """Remove the incomplete files of processes that have ended."""


def open_outputs(uri: str, errors_uri: str | None) -> tuple[Directory, Directory | None]:
    """Return the directory of results, and that of failed rows if it is a separate one.

    Raises:
        WrongSettings: one is a file or not an address, or both are the same.
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
    """Return the place of an input and its files, without those below outputs.

    Raises:
        WrongSettings: there are no files.
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
    """Return the directory or the file at an address.

    Raises:
        WrongSettings: it is not an address, or its library is not installed.
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
        raise InvalidSettings(f"{scheme}:// needs {error.name}: pip install 'shoal[{scheme}]'") from None
    return open_bucket(uri)


def decompressed_file(opened: BinaryIO, file: InputFile) -> Any:
    """Return a file's content, decompressed if its name ends in ``.gz``."""
    if not file.path.lower().endswith(".gz"):
        return opened
    import gzip  # noqa: PLC0415 (seldom)

    return gzip.GzipFile(fileobj=opened)
