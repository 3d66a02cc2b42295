"""Casts of a file's table to the schema of the whole input. Pure.

A missing column becomes null. A cell that does not fit its column's type is an error of its row.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from shoal_runtime.offline.column_types import is_list, is_partition, plain, plain_type, promoted
from shoal_runtime.offline.partitions import partition_cell
from shoal_runtime.offline.windows import Window

_SHOWN: Final = 60


def cast_table(table: pa.Table, schema: pa.Schema, path: str = "") -> Window:
    """Cast a file's table to a schema, with partition columns from the file's ``path``."""
    faults: dict[int, str] = {}
    names = set(table.column_names)
    columns = []
    for each in schema:
        own = table.column(each.name) if each.name in names else None
        if is_partition(each):
            columns.append(_partition(own, each, path, table.num_rows, faults))
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


def constant(value: Any, rows: int, kind: pa.DataType) -> Any:
    """Return a column with one value in all rows."""
    return pa.repeat(pa.scalar(value, kind), rows)


def _partition(own: Any, wanted: pa.Field, path: str, rows: int, faults: dict[int, str]) -> Any:
    """Return a partition column: the value in ``path`` for all rows.

    A row whose cell in the file differs from this value gets an error in ``faults``.
    """
    # The path wins over a column of the same name in the file.
    value = partition_cell(path, wanted)
    if own is not None and own.null_count < rows:
        for row, cell in enumerate(_comparable(own, wanted.type)):
            if cell is not None and cell != value:
                faults.setdefault(
                    row,
                    f"{wanted.name} is {str(cell)[:_SHOWN]!r} in the file and {str(value)!r} in its path",
                )
    return constant(value, rows, wanted.type)


def _comparable(own: Any, kind: pa.DataType) -> list[Any]:
    """Return a column's cells in a partition's type; a cell that does not fit becomes text."""
    for wanted in (kind, pa.string()):
        try:
            found: list[Any] = plain(own).cast(wanted).to_pylist()
        except pa.ArrowException:
            continue
        if wanted == kind or len(found) == 1:
            return found
    if len(own) == 1:
        return [str(own[0].as_py()) if own[0].is_valid else None]
    return [cell for row in range(len(own)) for cell in _comparable(own.slice(row, 1), kind)]


def cells_column(rows: Sequence[Mapping[str, Any]], wanted: pa.Field, faults: dict[int, str], path: str = "") -> Any:
    """Return the values of one key of JSON objects as a column; errors go to ``faults``."""
    cells = [row.get(wanted.name) for row in rows]
    if is_partition(wanted):
        texts = [None if cell is None else str(cell) for cell in cells]
        return _partition(pa.chunked_array([texts], pa.string()), wanted, path, len(cells), faults)
    try:
        column = pa.array(cells, wanted.type)
        # Arrow truncates fractions in integer columns and converts booleans to numbers, without an error.
        strange = _holds_fractions(wanted.type) and any(map(_holds_bool, cells))
        if not strange and column.to_pylist() == cells:
            return column
    except (pa.ArrowException, OverflowError):
        pass
    # The column has a cell that does not fit: check each by itself.
    for row, cell in enumerate(cells):
        try:
            fits = _same(pa.array([cell], wanted.type)[0].as_py(), cell)
        except (pa.ArrowException, OverflowError):
            fits = False
        if not fits:
            faults.setdefault(row, cast_error(wanted, cell))
            cells[row] = None
    return pa.array(cells, wanted.type)


def _holds_fractions(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_holds_fractions(each.type) for each in kind)
    return _holds_fractions(kind.value_type) if is_list(kind) else bool(pa.types.is_floating(kind))


def _holds_bool(cell: Any) -> bool:
    if isinstance(cell, list):
        return any(map(_holds_bool, cell))
    return isinstance(cell, bool) or (isinstance(cell, dict) and any(map(_holds_bool, cell.values())))


def _same(found: Any, given: Any) -> bool:
    """Return whether a cell is unchanged after a cast; a missing key equals null."""
    if isinstance(found, dict):
        extra_null = isinstance(given, dict) and all(name in found or value is None for name, value in given.items())
        return extra_null and all(_same(value, given.get(name)) for name, value in found.items())
    if isinstance(found, list):
        return isinstance(given, list) and len(found) == len(given) and all(map(_same, found, given))
    return bool(found == given) and isinstance(found, bool) == isinstance(given, bool)
