"""The unit of work: some bytes of one file, or a run of small files. Pure.

Which shards there are follows from the files' names and sizes alone, so that every worker finds the same without
asking. A shard is named by the place of its file among them, and by its own in the file. A line belongs to the shard in
whose bytes it begins, a row group to that in which its middle lies.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shoal_runtime.offline.errors import WrongSettings
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
class File:
    """One file of the input.

    Args:
        path: below the folder that the input names.
        size_bytes: as the store says.
        validator: changes when the content does.
    """

    path: str
    size_bytes: int
    validator: str


@dataclass(frozen=True, slots=True)
class Shard:
    """What one worker takes at a time.

    Args:
        name: of its output, without a suffix.
        files: one; of small files, whose rows they are, many.
        start: of one file: the first byte.
        stop: of one file: the byte after the last.
    """

    name: str
    files: tuple[File, ...]
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """Return about how much there is to read."""
        return self.stop - self.start

    @property
    def whole(self) -> bool:
        """Return whether it is all of its file."""
        return self.start == 0 and self.stop >= self.files[0].size_bytes

    @property
    def validator(self) -> str:
        """Return what changes when the shard's input does."""
        return digest(self.files)


def split_pattern(path: str) -> tuple[str, str]:
    """Return the folder that a pattern of names begins with, and the rest; the rest is empty where there is none."""
    magic = _MAGIC.search(path)
    if magic is None:
        return path, ""
    folder, slash, _ = path[: magic.start()].rpartition("/")
    return folder + slash, path[len(folder + slash) :]


def matching(files: Iterable[File], pattern: str) -> list[File]:
    """Return the files that a pattern means, in order of their names; of a folder all, but for hidden ones."""
    found = [each for each in files if not is_hidden(each.path)]
    if pattern:
        expression = re.compile(_translated(pattern))
        found = [each for each in found if expression.fullmatch(each.path)]
    return sorted(found, key=lambda each: each.path)


def readable(path: str) -> str:
    """Return a file's name as text that every reader takes."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def is_hidden(path: str) -> bool:
    """Return whether a file is what other programs leave beside rows: `.name`, `_name`, or below such a folder.

    A Hive partition's folder is none, whatever its column is called.
    """
    *folders, name = path.split("/")
    return name.startswith((".", "_")) or any(
        each.startswith(".") or (each.startswith("_") and "=" not in each) for each in folders
    )


def _translated(pattern: str) -> str:
    """Return a pattern of names as an expression: a star stays within its folder, two stars pass any number of them."""
    return "".join(_TOKENS.get(token) or _class_or_text(token) for token in _SPLIT.split(pattern))


def _class_or_text(token: str) -> str:
    return token.replace("[!", "[^", 1) if token.startswith("[") and token.endswith("]") else re.escape(token)


def format_of(files: Sequence[File], asked: RowFormat) -> RowFormat:
    """Return how the rows are stored.

    Raises:
        WrongSettings: the names say several things.
    """
    if asked is not RowFormat.AUTO:
        return asked
    kinds = {_by_name(each.path): each.path for each in reversed(files)}
    if len(kinds) > 1:
        told = ", ".join(f"{path} ({kind})" for kind, path in sorted(kinds.items()))
        raise WrongSettings(
            f"the input holds several kinds of files: {told}; name those that are meant, as in FOLDER/*.parquet"
        )
    return next(iter(kinds))


def _by_name(path: str) -> RowFormat:
    name = path.lower()
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), RowFormat.FILES)


def cut(files: Sequence[File], kind: RowFormat, shard_bytes: int) -> list[Shard]:
    """Return the shards of the files, in order; a file that is replaced changes none but its own."""
    if kind is RowFormat.FILES:
        return [Shard(f"part-{number:05d}", *run) for number, run in enumerate(_runs(files, shard_bytes))]
    return [shard for number, each in enumerate(files) for shard in _ranges(number, each, kind, shard_bytes)]


def _ranges(number: int, file: File, kind: RowFormat, shard_bytes: int) -> Iterable[Shard]:
    # Where a line of CSV, or of anything that is compressed, begins, nobody knows who has not read all before it.
    divisible = kind in (RowFormat.PARQUET, RowFormat.JSON_LINES) and not file.path.lower().endswith(".gz")
    count = max(1, round(file.size_bytes / shard_bytes)) if divisible else 1
    bounds = [file.size_bytes * piece // count for piece in range(count + 1)]
    for piece, (start, stop) in enumerate(pairwise(bounds)):
        yield Shard(f"part-{number:05d}" + (f"-{piece:05d}" if count > 1 else ""), (file,), start, stop)


def _runs(files: Iterable[File], shard_bytes: int) -> Iterable[tuple[tuple[File, ...], int, int]]:
    run: list[File] = []
    size_bytes = 0
    for each in files:
        if run and (len(run) == FILES_OF_A_SHARD or size_bytes + each.size_bytes > shard_bytes):
            yield tuple(run), 0, size_bytes
            run, size_bytes = [], 0
        run.append(each)
        size_bytes += each.size_bytes
    if run:
        yield tuple(run), 0, size_bytes


def begins_in(shard: Shard, start: int, stop: int) -> bool:
    """Return whether bytes of the file, a row group's, belong to the shard: their middle lies in it."""
    middle = (start + stop) // 2
    return shard.start <= middle < shard.stop or (shard.stop >= shard.files[0].size_bytes <= middle)


def own_order(shards: Sequence[Shard], worker: int, workers: int) -> list[Shard]:
    """Return the shards in the order in which one of several workers takes them: its own, then others', last first."""
    own = [each for number, each in enumerate(shards) if number % workers == worker]
    others = [each for number, each in enumerate(shards) if number % workers != worker]
    return own + others[::-1]


def named(files: Sequence[File]) -> str:
    """Return what is the same as long as there are the same files, whatever they hold."""
    names = "\n".join(each.path for each in files).encode(errors="surrogateescape")
    return f"{len(files):,}, named {hashlib.sha256(names).hexdigest()[:16]}"


def digest(files: Iterable[File]) -> str:
    """Return what is the same as long as the files are: SHA-256 in hex."""
    sha256 = hashlib.sha256()
    for each in files:
        sha256.update(f"{each.path}\0{each.size_bytes}\0{each.validator}\n".encode(errors="surrogateescape"))
    return sha256.hexdigest()
