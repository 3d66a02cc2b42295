"""Thread that reads shards ahead of the engines, in windows of rows, within a memory budget."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from shoal_runtime.offline.errors import ShardError
from shoal_runtime.offline.inputs import InputRows, make_rows
from shoal_runtime.offline.shards import Shard
from shoal_runtime.offline.tables import TableSource
from shoal_runtime.offline.windows import early_first
from shoal_runtime.signature.spec import TensorSpec

MAX_WINDOWS: Final = 16
"""Windows held at once, however small."""


@dataclass(frozen=True, slots=True)
class ShardStarted:
    """Event: the reader has begun a shard, whose windows follow."""

    shard: Shard


@dataclass(frozen=True, slots=True)
class WindowRead:
    """Event: the reader has read a window of the shard that it began last."""

    kept: pa.Table
    """Columns to write beside the results."""
    rows: InputRows
    """Rows as the model takes them."""
    size_bytes: int
    """Memory, released when the window is written."""
    share_bytes: float
    """The window's part of the shard, estimated."""


@dataclass(frozen=True, slots=True)
class ShardEnded:
    """Event: all windows of a shard are read, or reading it failed for the reason ``broken``."""

    shard: Shard
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class InputEnded:
    """Event: all shards are read, or reading failed with ``error``."""

    error: BaseException | None = None


class ByteBudget:
    """Limit of the bytes of windows that are held in memory.

    A window larger than the limit is read when no other window is held.
    """

    def __init__(self, size_bytes: int) -> None:
        self.whole_bytes = size_bytes
        self._left = size_bytes
        self._changed = threading.Condition()

    def acquire(self, size_bytes: int) -> None:
        """Wait until the budget has room for ``size_bytes`` more, and reserve them."""
        with self._changed:
            # A window larger than the whole budget must be read too.
            self._changed.wait_for(lambda: self._left >= size_bytes or self._left == self.whole_bytes)
            self._left -= size_bytes

    def release(self, size_bytes: int) -> None:
        """Return reserved bytes to the budget."""
        with self._changed:
            self._left += size_bytes
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class ShardReader:
    """Reader of a job's shards, which reports their windows as events."""

    source: TableSource
    """Rows of the input."""
    specs: Sequence[TensorSpec]
    """The model's inputs."""
    columns: Mapping[str, Sequence[str]]
    """Columns of each input."""
    kept: Sequence[str]
    """Columns to write beside the results."""
    claim: Callable[[Shard], bool]
    """Claims a shard when its turn comes; False: another worker has it."""
    budget: ByteBudget
    """Bytes that are read and not yet written."""

    def run(self, shards: Iterable[Shard], batch_size: int, report: Callable[[Any], None]) -> None:
        """Claim and read shards; report a start, the windows and an end for each, then the end of the input."""
        try:
            for shard in shards:
                if not self.claim(shard):
                    continue
                report(ShardStarted(shard))
                broken = None
                try:
                    for window in early_first(self.source.windows(shard, batch_size), batch_size):
                        rows = make_rows(window, self.specs, self.columns)
                        # Rows are held twice: as read, and as the model takes them. The minimum limits the number of
                        # windows.
                        size_bytes = max(2 * window.table.nbytes, self.budget.whole_bytes // MAX_WINDOWS)
                        self.budget.acquire(size_bytes)
                        report(WindowRead(window.table.select(self.kept), rows, size_bytes, window.share_bytes))
                except ShardError as error:
                    broken = str(error)
                report(ShardEnded(shard, broken))
            report(InputEnded())
        except BaseException as error:  # the loop waits for rows and must receive it
            report(InputEnded(error))


def all_columns(columns: Mapping[str, Sequence[str]], kept: Iterable[str], where: Iterable[str]) -> list[str]:
    """Return the columns that a job reads, each once.

    Args:
        columns: columns of each of the model's inputs.
        kept: columns to write beside the results.
        where: columns of the row filter.
    """
    return list(dict.fromkeys([*kept, *(name for names in columns.values() for name in names), *where]))
