"""Windows: consecutive rows of a shard in the input's schema. Pure.

A column that a file does not have is null. A cell that does not fit its column's type is an error of its row.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from shoal_runtime.offline.partitions import partition_column
from shoal_runtime.offline.schemas import is_list, is_partition, plain, plain_type, promoted

PATH: Final = "path"
"""Column of the path, in an input of files that are one row each."""
CONTENT: Final = "content"
"""Column of the content, in an input of files."""
MAX_ROWS: Final = 4096
TARGET_BYTES: Final = 32 * 2**20
EARLY_ROWS: Final = 8
_SHOWN: Final = 60


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


def window_rows(row_bytes: float, batch_size: int) -> int:
    """Return the rows of a window: several batches, at most about 32 MiB."""
    # Not less than a batch of up to 64 rows, however large they are.
    fitting = int(TARGET_BYTES / max(row_bytes, 1.0))
    return max(min(fitting, max(MAX_ROWS, 8 * batch_size)), min(batch_size, 64), 1)


def early_first(windows: Iterable[Window], batch_size: int) -> Iterator[Window]:
    """Split the first window of a shard, so that first results appear soon."""
    rest = iter(windows)
    for first in itertools.islice(rest, 1):
        yield from first.cut(min(batch_size, EARLY_ROWS))
    yield from rest


def regrouped(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Join and split tables into tables of ``rows`` rows.

    The last table, and tables of large rows, have fewer rows.
    """
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        if count < rows:
            if sum(each.nbytes for each in held) >= TARGET_BYTES:
                yield pa.concat_tables(held)
                held, count = [], 0
            continue
        # Slices share the memory of the joined table.
        joined = pa.concat_tables(held)
        for at in range(0, count - count % rows, rows):
            yield joined.slice(at, rows)
        held, count = [joined.slice(count - count % rows)], count % rows
    if count:
        yield pa.concat_tables(held)


def cast_table(table: pa.Table, schema: pa.Schema, path: str = "") -> Window:
    """Cast a file's table to a schema; partitions come from ``path``."""
    faults: dict[int, str] = {}
    names = set(table.column_names)
    columns = []
    for each in schema:
        own = table.column(each.name) if each.name in names else None
        if is_partition(each):
            columns.append(partition_column(own, each, path, table.num_rows, faults))
            continue
        if own is None:
            columns.append(pa.nulls(table.num_rows, each.type))
            continue
        try:
            columns.append(own if own.type == each.type else _cast(own, each.type))
        except pa.ArrowException:
            # At least one cell does not fit: find it.
            columns.append(_cell_by_cell(own, each, faults))
    return Window(pa.table(columns, schema=schema), faults)


def _cast(column: Any, kind: pa.DataType) -> Any:
    """Cast a column to another type; only floats may be rounded.

    Raises:
        ArrowException: the cast would change the value of a cell.
    """
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    # Storage forms such as dictionaries are decoded first.
    if plain_type(column.type) != column.type:
        column = plain(column)
    if kind == pa.float64() and (pa.types.is_decimal(column.type) or pa.types.is_integer(column.type)):
        return _float64(column)
    cast = column.cast(kind)
    # Arrow itself checks each cell of casts to a type that holds both, and from decimals.
    checked = promoted(column.type, kind) == kind or pa.types.is_decimal(column.type)
    given, wanted = column.type, kind
    while is_list(given) and is_list(wanted):
        given, wanted = given.value_type, wanted.value_type
    rounded = pa.types.is_floating(given) and pa.types.is_floating(wanted)
    if not checked and not rounded and cast.cast(column.type) != column:
        raise pa.ArrowInvalid("the cast would change the value of a cell")
    return cast


def _float64(column: Any) -> Any:
    """Cast integers or decimals to float64.

    Raises:
        ArrowInvalid: a number has more digits than float64 holds.
    """
    # Arrow casts large integers to float64 with an error, and decimals with silent rounding.
    whole = pa.types.is_integer(column.type)
    if whole:
        with suppress(pa.ArrowInvalid):  # a cell beyond 2**53 may still be exact
            return column.cast(pa.float64())
    cells = column.to_pylist()
    found = [None if cell is None else float(cell) for cell in cells]
    for cell, near in zip(cells, found, strict=True):
        if cell is not None and cell != (near if whole else Decimal(repr(near))):
            raise pa.ArrowInvalid("the cast would change the value of a cell")
    return pa.array(found, pa.float64())


def _cell_by_cell(column: pa.ChunkedArray, wanted: pa.Field, faults: dict[int, str]) -> pa.Array:
    cells = []
    for row in range(len(column)):
        try:
            cell = _cast(column.take(pa.array([row])), wanted.type)
            cells.append(cell.combine_chunks() if isinstance(cell, pa.ChunkedArray) else cell)
        except pa.ArrowException:
            try:
                shown = column[row].as_py()
            except (ValueError, OverflowError):  # a time beyond Python's range
                shown = column.slice(row, 1).cast(pa.string())[0].as_py()
            faults.setdefault(row, cast_error(wanted, shown))
            cells.append(pa.nulls(1, wanted.type))
    return pa.concat_arrays(cells)


def cast_error(wanted: pa.Field, cell: Any) -> str:
    """Return the error message for a cell that does not fit its column's type."""
    return f"{wanted.name} is {str(cell)[:_SHOWN]!r}, expected {wanted.type}"
