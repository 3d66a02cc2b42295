"""The thread that reads ahead: shards, window after window, as far as the bytes that may be held allow."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from shoal_runtime.handlers.spec import TensorSpec
from shoal_runtime.offline.errors import ShardError
from shoal_runtime.offline.inputs import Rows, make_rows
from shoal_runtime.offline.shards import Shard
from shoal_runtime.offline.tables import Source
from shoal_runtime.offline.windows import early_first

MOST_WINDOWS: Final = 16
"""Held at once, however light they are."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A shard's rows follow."""

    shard: Shard


@dataclass(frozen=True, slots=True)
class Read:
    """A window of the shard that was begun last.

    Args:
        kept: what stands beside its answers.
        rows: what the model is given.
        size_bytes: of memory, to be given back.
        share_bytes: about what part of the shard it is.
    """

    kept: pa.Table
    rows: Rows
    size_bytes: int
    share_bytes: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The shard has no more rows, or cannot be read; then ``broken`` says why."""

    shard: Shard
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class AllRead:
    """There are no more shards; ``error`` ended the reading before."""

    error: BaseException | None = None


class Budget:
    """Bytes that may be held; one who is refused waits. Something may always be held, however large."""

    def __init__(self, size_bytes: int) -> None:
        self.whole_bytes = size_bytes
        self._left = size_bytes
        self._changed = threading.Condition()

    def take(self, size_bytes: int) -> None:
        """Wait until so many bytes may be held more."""
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size_bytes or self._left == self.whole_bytes)
            self._left -= size_bytes

    def give(self, size_bytes: int) -> None:
        """Say that so many bytes are held no more."""
        with self._changed:
            self._left += size_bytes
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads shards, as the job wants them.

    Args:
        source: the rows.
        specs: the model's inputs.
        columns: of each input.
        kept: columns that stand beside the answers.
        claim: whether a shard is ours to do, asked when its turn comes.
        budget: of bytes that are read and not written yet.
    """

    source: Source
    specs: Sequence[TensorSpec]
    columns: Mapping[str, Sequence[str]]
    kept: Sequence[str]
    claim: Callable[[Shard], bool]
    budget: Budget

    def run(self, shards: Iterable[Shard], batch_size: int, tell: Callable[[Any], None]) -> None:
        """Tell of every shard that is ours, and last that this was all."""
        try:
            for shard in shards:
                if self.claim(shard):
                    self._read(shard, batch_size, tell)
            tell(AllRead())
        except BaseException as error:  # whoever waits for rows must hear of it
            tell(AllRead(error))

    def _read(self, shard: Shard, batch_size: int, tell: Callable[[Any], None]) -> None:
        tell(Begun(shard))
        try:
            for window in early_first(self.source.windows(shard, batch_size), batch_size):
                rows = make_rows(window, self.specs, self.columns)
                # Held twice: as it was read, and as the model takes it. Many light ones are no use.
                size_bytes = max(2 * window.table.nbytes, self.budget.whole_bytes // MOST_WINDOWS)
                self.budget.take(size_bytes)
                tell(Read(window.table.select(self.kept), rows, size_bytes, window.share_bytes))
        except ShardError as error:
            tell(Ended(shard, str(error)))
        else:
            tell(Ended(shard))


def all_columns(columns: Mapping[str, Sequence[str]], kept: Iterable[str], where: Iterable[str]) -> list[str]:
    """Return the columns that have to be read."""
    return list(dict.fromkeys([*kept, *(name for names in columns.values() for name in names), *where]))
