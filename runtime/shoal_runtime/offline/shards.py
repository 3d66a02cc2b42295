"""Shards, the unit of work: a range of bytes of one file, or consecutive small files. Pure.

Shards depend only on the files' names and sizes, so all workers compute the same shards without communication. A
shard's name holds the number of its file, and the shard's number within the file. A line belongs to the shard that
holds its first byte, a row group to the shard that holds its middle byte.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shoal_runtime.offline.errors import InvalidSettings
from shoal_schema.resource.offline import RowFormat

FILES_OF_A_SHARD: Final = 1000
SUFFIXES: Final = {
    ".parquet": RowFormat.PARQUET,
    ".csv": RowFormat.CSV,
    ".csv.gz": RowFormat.CSV,
    ".jsonl": RowFormat.JSON_LINES,
    ".ndjson": RowFormat.JSON_LINES,
    ".jsonl.gz": RowFormat.JSON_LINES,
    ".ndjson.gz": RowFormat.JSON_LINES,
}
_MAGIC: Final = re.compile(r"[*?\[]")
_SPLIT: Final = re.compile(r"(\*\*/|\*\*|\*|\?|\[!?[^\]/]+\])")
_TOKENS: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the input."""

    path: str
    """Below the input's directory."""
    size_bytes: int
    validator: str
    """Changes when the content does."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part of the input that one worker claims at a time."""

    name: str
    """Name of its results, without a suffix."""
    files: tuple[InputFile, ...]
    """One file, or several small files that are one row each."""
    start: int
    """First byte of the one file."""
    stop: int
    """Byte after the last."""

    @property
    def size_bytes(self) -> int:
        """Return the approximate number of bytes to read."""
        return self.stop - self.start

    @property
    def whole(self) -> bool:
        """Return whether the shard covers its whole file."""
        return self.start == 0 and self.stop >= self.files[0].size_bytes

    @property
    def validator(self) -> str:
        """Return a digest of the shard's files, which changes when a file changes."""
        return digest(self.files)


def split_pattern(path: str) -> tuple[str, str]:
    """Split a path into a directory and a glob pattern; the pattern may be empty."""
    magic = _MAGIC.search(path)
    if magic is None:
        return path, ""
    folder, slash, _ = path[: magic.start()].rpartition("/")
    return folder + slash, path[len(folder + slash) :]


def matching(files: Iterable[InputFile], pattern: str) -> list[InputFile]:
    """Return the files that match a glob pattern, sorted by path, without hidden files.

    A star matches within one directory, two stars match any number of directories. An empty pattern matches all files.
    """
    found = [each for each in files if not is_hidden(each.path)]
    if pattern:
        parts = []
        for token in _SPLIT.split(pattern):
            if token.startswith("[") and token.endswith("]"):
                parts.append(token.replace("[!", "[^", 1))
            else:
                parts.append(_TOKENS.get(token) or re.escape(token))
        expression = re.compile("".join(parts))
        found = [each for each in found if expression.fullmatch(each.path)]
    return sorted(found, key=lambda each: each.path)


def readable(path: str) -> str:
    """Return a file path as valid UTF-8 text; other bytes are escaped."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def is_hidden(path: str) -> bool:
    """Return whether a name in a path begins with ``.`` or ``_``.

    A directory of a Hive partition is not hidden if its column's name begins with ``_``.
    """
    *folders, name = path.split("/")
    return name.startswith((".", "_")) or any(
        each.startswith(".") or (each.startswith("_") and "=" not in each) for each in folders
    )


def format_of(files: Sequence[InputFile], asked: RowFormat) -> RowFormat:
    """Return the format of the input's rows.

    It is ``asked``, or with `RowFormat.AUTO` the format that the suffixes of the file names state.

    Raises:
        InvalidSettings: the files have several formats.
    """
    if asked is not RowFormat.AUTO:
        return asked
    kinds = {}
    for each in reversed(files):
        name = each.path.lower()
        kind = next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), RowFormat.FILES)
        kinds[kind] = each.path
    if len(kinds) > 1:
        shown = ", ".join(f"{path} ({kind})" for kind, path in sorted(kinds.items()))
        raise InvalidSettings(f"the input has files of several formats: {shown}. Select one, as in DIRECTORY/*.parquet")
    return next(iter(kinds))


def cut(files: Sequence[InputFile], kind: RowFormat, shard_bytes: int) -> list[Shard]:
    """Divide files into shards, in order; a replaced file changes only its own shards."""
    if kind is RowFormat.FILES:
        # A shard ends before the file that would exceed its size.
        runs: list[list[InputFile]] = []
        size_bytes = 0
        for each in files:
            if not runs or len(runs[-1]) == FILES_OF_A_SHARD or size_bytes + each.size_bytes > shard_bytes:
                runs.append([])
                size_bytes = 0
            runs[-1].append(each)
            size_bytes += each.size_bytes
        return [
            Shard(f"part-{number:05d}", tuple(run), 0, sum(each.size_bytes for each in run))
            for number, run in enumerate(runs)
        ]
    shards = []
    for number, file in enumerate(files):
        # Where a row of CSV or of compressed data begins is only found by reading from the start.
        divisible = kind in (RowFormat.PARQUET, RowFormat.JSON_LINES) and not file.path.lower().endswith(".gz")
        count = max(1, round(file.size_bytes / shard_bytes)) if divisible else 1
        bounds = [file.size_bytes * piece // count for piece in range(count + 1)]
        for piece, (start, stop) in enumerate(pairwise(bounds)):
            suffix = f"-{piece:05d}" if count > 1 else ""
            shards.append(Shard(f"part-{number:05d}{suffix}", (file,), start, stop))
    return shards


def begins_in(shard: Shard, start: int, stop: int) -> bool:
    """Return whether the middle byte of a row group lies in a shard.

    Args:
        shard: byte range of a file.
        start: first byte of the row group.
        stop: byte after the row group's last.
    """
    # The middle, so that every row group has exactly one shard.
    middle = (start + stop) // 2
    return shard.start <= middle < shard.stop or (shard.stop >= shard.files[0].size_bytes <= middle)


def own_order(shards: Sequence[Shard], worker: int, workers: int) -> list[Shard]:
    """Return all shards in the order of one worker.

    The worker's own shards come first, then those of other workers in reverse.
    """
    own = [each for number, each in enumerate(shards) if number % workers == worker]
    others = [each for number, each in enumerate(shards) if number % workers != worker]
    return own + others[::-1]


def named(files: Sequence[InputFile]) -> str:
    """Return a text with the number of files and a digest of their names."""
    # Names may hold bytes that are not UTF-8.
    names = "\n".join(each.path for each in files).encode(errors="surrogateescape")
    return f"{len(files):,}, named {hashlib.sha256(names).hexdigest()[:16]}"


def digest(files: Iterable[InputFile]) -> str:
    """Return the SHA-256 of the names, sizes and validators of files, in hex."""
    sha256 = hashlib.sha256()
    for each in files:
        sha256.update(f"{each.path}\0{each.size_bytes}\0{each.validator}\n".encode(errors="surrogateescape"))
    return sha256.hexdigest()
