"""The thread that reads ahead: shards in windows, within a budget of bytes."""

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
"""Maximum number of windows held at a time, even if they are small."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A shard begins; its rows follow."""

    shard: Shard


@dataclass(frozen=True, slots=True)
class Read:
    """A window of the shard that began last."""

    kept: pa.Table
    """Columns to write beside the results."""
    rows: Rows
    """Rows as the model takes them."""
    size_bytes: int
    """Memory, released when the window is written."""
    share_bytes: float
    """The window's part of the shard, estimated."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The shard has no further rows, or cannot be read (``broken`` is the reason)."""

    shard: Shard
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class AllRead:
    """There are no further shards, or reading failed with ``error``."""

    error: BaseException | None = None


class Budget:
    """Bytes that may be held. A window larger than the budget is read when nothing else is held."""

    def __init__(self, size_bytes: int) -> None:
        self.whole_bytes = size_bytes
        self._left = size_bytes
        self._changed = threading.Condition()

    def take(self, size_bytes: int) -> None:
        """Wait until more bytes may be held, and take them."""
        with self._changed:
            # A window larger than the whole budget must be read too.
            self._changed.wait_for(lambda: self._left >= size_bytes or self._left == self.whole_bytes)
            self._left -= size_bytes

    def give(self, size_bytes: int) -> None:
        """Release bytes."""
        with self._changed:
            self._left += size_bytes
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the shards of a job."""

    source: Source
    """Rows of the input."""
    specs: Sequence[TensorSpec]
    """The model's inputs."""
    columns: Mapping[str, Sequence[str]]
    """Columns of each input."""
    kept: Sequence[str]
    """Columns to write beside the results."""
    claim: Callable[[Shard], bool]
    """Claims a shard when its turn comes; False: another worker has it."""
    budget: Budget
    """Bytes that are read and not yet written."""

    def run(self, shards: Iterable[Shard], batch_size: int, report: Callable[[Any], None]) -> None:
        """Report the windows of every claimed shard, then the end."""
        try:
            for shard in shards:
                if not self.claim(shard):
                    continue
                report(Begun(shard))
                broken = None
                try:
                    for window in early_first(self.source.windows(shard, batch_size), batch_size):
                        rows = make_rows(window, self.specs, self.columns)
                        # Rows are held twice: as read, and as the model takes them. The minimum limits the number of
                        # windows.
                        size_bytes = max(2 * window.table.nbytes, self.budget.whole_bytes // MOST_WINDOWS)
                        self.budget.take(size_bytes)
                        report(Read(window.table.select(self.kept), rows, size_bytes, window.share_bytes))
                except ShardError as error:
                    broken = str(error)
                report(Ended(shard, broken))
            report(AllRead())
        except BaseException as error:  # the loop waits for rows and must receive it
            report(AllRead(error))


def all_columns(columns: Mapping[str, Sequence[str]], kept: Iterable[str], where: Iterable[str]) -> list[str]:
    """Return the columns to read."""
    return list(dict.fromkeys([*kept, *(name for names in columns.values() for name in names), *where]))
