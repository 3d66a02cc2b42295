"""Windows of consecutive rows, and their division into batches. Pure.

All rows of a window are sorted by shape and length, so a batch holds rows of about one length, with little padding.
Results are written in the original order.
"""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from shoal_runtime.offline.column_types import is_bytes
from shoal_schema.wire.datatypes import Array

PATH: Final = "path"
"""Column of the path, in an input of files that are one row each."""
CONTENT: Final = "content"
"""Column of the content, in an input of files."""
MAX_ROWS: Final = 4096
TARGET_BYTES: Final = 32 * 2**20
EARLY_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive rows of a shard, with errors of unreadable rows."""

    table: pa.Table
    faults: Mapping[int, str] = field(default_factory=dict)
    """Errors of rows that cannot be read."""
    share_bytes: float = 0.0
    """The window's part of its shard, estimated, for the progress."""

    def cut(self, rows: int) -> list["Window"]:
        """Split the window after ``rows`` rows."""
        if self.table.num_rows <= rows:
            return [self]
        before = {row: error for row, error in self.faults.items() if row < rows}
        after = {row - rows: error for row, error in self.faults.items() if row >= rows}
        share_bytes = self.share_bytes * rows / self.table.num_rows
        return [
            Window(self.table.slice(0, rows), before, share_bytes),
            Window(self.table.slice(rows), after, self.share_bytes - share_bytes),
        ]


def is_file(kind: pa.DataType) -> bool:
    """Return whether a column holds ``struct<bytes: binary, path: string>``, Hugging Face's files."""
    names = {each.name for each in kind} if pa.types.is_struct(kind) else set()
    return names == {"bytes", "path"} and is_bytes(kind.field("bytes").type)


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether a column holds bytes, with or without a path."""
    return is_bytes(kind) or is_file(kind)


def window_rows(row_bytes: float, batch_size: int) -> int:
    """Return the number of rows of a window: several batches, but at most about 32 MiB."""
    # Not less than a batch of up to 64 rows, however large they are.
    fitting = int(TARGET_BYTES / max(row_bytes, 1.0))
    return max(min(fitting, max(MAX_ROWS, 8 * batch_size)), min(batch_size, 64), 1)


def early_first(windows: Iterable[Window], batch_size: int) -> Iterator[Window]:
    """Make the first window of a shard small, so that the first results appear soon."""
    rest = iter(windows)
    for first in itertools.islice(rest, 1):
        yield from first.cut(min(batch_size, EARLY_ROWS))
    yield from rest


def cut_batches(keys: Sequence[Hashable], sizes: Array, rows: Array, limit: int) -> list[Array]:
    """Divide rows into batches of at most ``limit`` rows, each with one batch key.

    Args:
        keys: batch key of each row of the window.
        sizes: length of each row of the window.
        rows: row numbers to batch.
        limit: maximum rows of a batch.
    """
    # A stable sort keeps rows of one length in their order, so batches are reproducible.
    order = rows[np.argsort(sizes[rows], kind="stable")]
    groups: dict[Hashable, list[int]] = {}
    for row in order.tolist():
        groups.setdefault(keys[row], []).append(row)
    return [np.array(group[at : at + limit]) for group in groups.values() for at in range(0, len(group), limit)]


def halves(rows: Array) -> list[Array]:
    """Split an array of row numbers into two halves."""
    middle = (len(rows) + 1) // 2
    return [rows[:middle], rows[middle:]]
