"""Windows of rows, and which of their rows travel together. Pure.

Online, rows are taken as they come; here those of a whole window lie before us. They are sorted by form and length, so
that a batch holds rows of about one length and little of it is padding; whoever writes the answers puts them back in
order.
"""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from shoal_runtime.offline.kinds import is_bytes
from shoal_schema.wire.datatypes import Array

PATH: Final = "path"
CONTENT: Final = "content"
"""Columns of an input of files, each of which is one row."""
MAX_ROWS: Final = 4096
TARGET_BYTES: Final = 32 * 2**20
EARLY_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class Window:
    """Some rows in a row.

    Args:
        table: the rows.
        faults: those of them that are not readable, each with the reason.
        share_bytes: about what part of its shard it is, for who watches.
    """

    table: pa.Table
    faults: Mapping[int, str] = field(default_factory=dict)
    share_bytes: float = 0.0

    def cut(self, rows: int) -> list["Window"]:
        """Return the first so many rows, and the others if there are any."""
        if self.table.num_rows <= rows:
            return [self]
        before = {row: said for row, said in self.faults.items() if row < rows}
        after = {row - rows: said for row, said in self.faults.items() if row >= rows}
        share_bytes = self.share_bytes * rows / self.table.num_rows
        return [
            Window(self.table.slice(0, rows), before, share_bytes),
            Window(self.table.slice(rows), after, self.share_bytes - share_bytes),
        ]


def is_file(kind: pa.DataType) -> bool:
    """Return whether cells are files as Hugging Face's datasets write them: ``struct<bytes: binary, path: string>``."""
    return pa.types.is_struct(kind) and {each.name for each in kind} == {"bytes", "path"} and _is_bytes(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return is_bytes(kind.field("bytes").type)


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether cells are bytes, alone or beside their path."""
    return is_bytes(kind) or is_file(kind)


def window_rows(row_bytes: float, batch_size: int) -> int:
    """Return how many rows of about so many bytes make a window: some batches, within about 32 MiB."""
    fitting = int(TARGET_BYTES / max(row_bytes, 1.0))
    return max(min(fitting, max(MAX_ROWS, 8 * batch_size)), min(batch_size, 64), 1)


def early_first(windows: Iterable[Window], batch_size: int) -> Iterator[Window]:
    """Yield the first rows of a shard in a window of their own: people look soon whether answers come."""
    rest = iter(windows)
    for first in itertools.islice(rest, 1):
        yield from first.cut(min(batch_size, EARLY_ROWS))
    yield from rest


def cut_batches(keys: Sequence[Hashable], sizes: Array, rows: Array, limit: int) -> list[Array]:
    """Return batches of at most ``limit`` of the ``rows``; those of different keys never meet.

    Args:
        keys: of every row of the window, what must be alike in a batch.
        sizes: of every row, what it has more or less of.
        rows: the rows that are to travel.
        limit: rows of a batch.
    """
    order = rows[np.argsort(sizes[rows], kind="stable")]
    groups: dict[Hashable, list[int]] = {}
    for row in order.tolist():
        groups.setdefault(keys[row], []).append(row)
    return [np.array(group[at : at + limit]) for group in groups.values() for at in range(0, len(group), limit)]


def halves(rows: Array) -> list[Array]:
    """Return a batch's rows in two batches."""
    middle = (len(rows) + 1) // 2
    return [rows[:middle], rows[middle:]]
