"""What a store says that a model consists of, checked before the first byte is brought. Pure.

A model is a folder, unless its URI names one file. Object stores know no folders: there it is all keys below `PREFIX/`,
so `model` never brings what lies in `model-old/`, and a key that ends in `/` only says that a folder is there.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from shoal_runtime.errors import LoadError
from shoal_runtime.unpacking import Limits, place_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a model.

    Args:
        path: below the model's folder.
        size_bytes: as the store says.
        validator: changes when the content does: an entity tag, a commit; empty where the store tells none.
        key: under which the store keeps it.
    """

    path: str
    size_bytes: int
    validator: str
    key: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A model's files; ``file`` where the URI names one of them rather than a folder."""

    entries: Sequence[Entry]
    file: str | None = None

    @property
    def size_bytes(self) -> int:
        """Return how much there is to bring."""
        return sum(entry.size_bytes for entry in self.entries)

    def digest(self) -> str:
        """Return what is the same as long as the store says that nothing has changed: SHA-256 in hex."""
        lines = (f"{entry.path}\0{entry.size_bytes}\0{entry.validator}\n" for entry in self.entries)
        return _sha256(lines)


class TooMany(Exception):
    """A store has more files than it was asked for."""


def bounded(items: Iterable[T], at_most: int) -> Iterator[T]:
    """Yield what a store lists, which may be without end.

    Raises:
        TooMany: there is more.
    """
    for count, item in enumerate(items, start=1):
        if count > at_most:
            raise TooMany
        yield item


def below(prefix: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return those whose keys lie below ``prefix``, by whole segments, under their paths from there on."""
    root = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
    return [
        replace(entry, path=entry.key.removeprefix(root))
        for entry in entries
        if entry.key.startswith(root) and not entry.key.endswith("/")
    ]


def checked(listing: Listing, limits: Limits, what: str) -> Listing:
    """Return the listing in order of paths.

    Raises:
        LoadError: there is nothing, it is more than the limits allow, or a path would not land in the folder alone.
    """
    if not listing.entries:
        raise LoadError(f"there is nothing at {what}")
    if len(listing.entries) > limits.max_files:
        raise limits.too_many_files(what)
    limits.check_bytes(listing.size_bytes, what)
    entries = sorted(listing.entries, key=lambda entry: entry.path)
    _check_places([str(place_of(entry.path)) for entry in entries], what)
    return Listing(entries, listing.file)


def tree_digest(files: Mapping[str, str]) -> str:
    """Return one SHA-256 for a tree, from the SHA-256 of each file by path.

    It is that of the lines ``HEX  PATH``, in order of paths, which is what `sha256sum` prints.
    """
    return _sha256(f"{files[path]}  {path}\n" for path in sorted(files))


def _check_places(places: Sequence[str], what: str) -> None:
    known = set(places)
    if len(known) < len(places):
        raise LoadError(f"{what} holds two files of one name")
    for place in places:
        parts = place.split("/")
        folder = next((name for n in range(1, len(parts)) if (name := "/".join(parts[:n])) in known), None)
        if folder is not None:
            raise LoadError(f"{what} holds {folder!r} both as a file and as a folder")


def _sha256(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode(errors="surrogateescape"))  # a folder that lies here may hold any names
    return digest.hexdigest()
