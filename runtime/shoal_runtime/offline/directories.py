"""Directories of input rows and of results: local, or in an object store.

A file is written atomically: a local file is renamed once it is on disk, an object is written by a single put.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from shoal_runtime.offline.directory import LocalDirectory
from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.shards import InputFile, split_pattern
from shoal_schema.fields.redaction import redacted_value
from shoal_schema.resource.locations import LocationError, local_path, scheme_of, shown
from shoal_schema.resource.offline import IN_WORDS, STORES


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
        """Write a small file unless it exists; return whether it was written. Only one concurrent call writes."""

    def writing(self, name: str) -> Any:
        """Return a context that yields a temporary path; at exit the file gets its final name."""

    def leave(self) -> None:
        """Remove incomplete files of this process."""

    def sweep(self) -> None:
        """Remove incomplete files of processes that have ended."""


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
        raise InvalidSettings(f"{scheme}:// needs {error.name}: pip install 'shoal[{scheme}]'") from None
    return open_bucket(uri)


def decompressed_file(opened: BinaryIO, file: InputFile) -> Any:
    """Return a file's content as a stream, decompressed if the name ends in ``.gz``."""
    if not file.path.lower().endswith(".gz"):
        return opened
    import gzip  # noqa: PLC0415 (seldom)

    return gzip.GzipFile(fileobj=opened)
