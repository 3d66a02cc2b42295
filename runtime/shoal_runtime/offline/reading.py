"""The thread that reads ahead: shards in windows, within a budget of bytes."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from shoal_runtime.handlers.spec import TensorSpec
from shoal_runtime.offline.errors import ShardError
from shoal_runtime.offline.inputs import InputRows, make_rows
from shoal_runtime.offline.shards import Shard
from shoal_runtime.offline.tables import TableSource
from shoal_runtime.offline.windows import early_first

MAX_WINDOWS: Final = 16
"""Windows held at once, however small."""


@dataclass(frozen=True, slots=True)
class ShardStarted:
    """A shard begins; its rows follow."""

    shard: Shard


@dataclass(frozen=True, slots=True)
class WindowRead:
    """A window of the shard that began last."""

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
    """The shard has no more rows; or cannot be read, for the reason ``broken``."""

    shard: Shard
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class InputEnded:
    """There are no more shards; or the reading failed with ``error``."""

    error: BaseException | None = None


class ByteBudget:
    """Bytes that may be held. A window larger than the budget is read when nothing else is held."""

    def __init__(self, size_bytes: int) -> None:
        self.whole_bytes = size_bytes
        self._left = size_bytes
        self._changed = threading.Condition()

    def acquire(self, size_bytes: int) -> None:
        """Wait until the budget allows more bytes, and reserve them."""
        with self._changed:
            # A window larger than the whole budget must be read too.
            self._changed.wait_for(lambda: self._left >= size_bytes or self._left == self.whole_bytes)
            self._left -= size_bytes

    def release(self, size_bytes: int) -> None:
        """Release bytes."""
        with self._changed:
            self._left += size_bytes
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class ShardReader:
    """Reads the shards of a job."""

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
        """Report the windows of every claimed shard, then the end."""
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
    """Return the columns to read."""
    return list(dict.fromkeys([*kept, *(name for names in columns.values() for name in names), *where]))
