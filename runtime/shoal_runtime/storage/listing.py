"""Listing of a model's files in a store, checked before the download. Pure.

A model is a directory, unless its URI names one file. In an object store, a directory is all keys that begin with
`PREFIX/`, so `model` does not include `model-old/`. A key that ends in `/` only marks a directory.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.unpacking import ArchiveLimits, place_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a model in a store."""

    path: str
    """Below the model's directory."""
    size_bytes: int
    validator: str
    """Version of the content: an entity tag or a commit; empty if the store has none."""
    key: str
    """Key in the store."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a model in a store; ``file`` is set if the URI names a single file."""

    entries: Sequence[ListedFile]
    file: str | None = None

    @property
    def size_bytes(self) -> int:
        """Return the total size of the files."""
        return sum(entry.size_bytes for entry in self.entries)

    def digest(self) -> str:
        """Return a digest of paths, sizes and validators, in hex, which changes with the files."""
        return _sha256(f"{entry.path}\0{entry.size_bytes}\0{entry.validator}\n" for entry in self.entries)


class TooManyFiles(Exception):
    """A store has more files than the given limit."""


def bounded(items: Iterable[T], at_most: int) -> Iterator[T]:
    """Yield the items of a store's listing, up to a limit.

    Raises:
        TooManyFiles: there are more than ``at_most`` items.
    """
    for count, item in enumerate(items, start=1):
        if count > at_most:
            raise TooManyFiles
        yield item


def below(prefix: str, entries: Iterable[ListedFile]) -> list[ListedFile]:
    """Return the files in the directory ``prefix`` of an object store, with relative paths."""
    root = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
    return [
        replace(entry, path=entry.key.removeprefix(root))
        for entry in entries
        if entry.key.startswith(root) and not entry.key.endswith("/")
    ]


def checked(listing: Listing, limits: ArchiveLimits, what: str) -> Listing:
    """Check a listing, and return it sorted by path.

    Raises:
        LoadError: the listing is empty, exceeds the limits, repeats a path, or has a path outside the directory.
    """
    if not listing.entries:
        raise LoadError(f"there are no files at {what}")
    if len(listing.entries) > limits.max_files:
        raise limits.too_many_files(what)
    limits.check_bytes(listing.size_bytes, what)
    entries = sorted(listing.entries, key=lambda entry: entry.path)
    places = [str(place_of(entry.path)) for entry in entries]
    known = set(places)
    # Different keys may have one path, such as a and ./a.
    if len(known) < len(places):
        raise LoadError(f"{what} has two files with the same path")
    for place in places:
        parts = place.split("/")
        file = next((name for n in range(1, len(parts)) if (name := "/".join(parts[:n])) in known), None)
        if file is not None:
            raise LoadError(f"{what} has {file!r} both as a file and as a directory")
    return Listing(entries, listing.file)


def tree_digest(files: Mapping[str, str]) -> str:
    """Return one SHA-256 for a directory, from the SHA-256 of each file by path.

    It is the digest of the lines ``HEX  PATH`` that `sha256sum` prints, sorted by path.
    """
    return _sha256(f"{files[path]}  {path}\n" for path in sorted(files))


def _sha256(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode(errors="surrogateescape"))  # names of local files may be any bytes
    return digest.hexdigest()
