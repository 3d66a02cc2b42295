"""Tables as their files hold them, in the types of the whole input. Pure.

A column that is missing is null, and a cell that does not fit its column's type is its row's fault.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from shoal_runtime.offline.kinds import is_list, is_partition, plain, plain_type, promoted
from shoal_runtime.offline.partitions import partition_cell
from shoal_runtime.offline.windows import Window

_SHOWN: Final = 60


def fitted(table: pa.Table, schema: pa.Schema, path: str = "") -> Window:
    """Return the table in the schema; ``path`` is the file's, for the columns that stand there."""
    faults: dict[int, str] = {}
    known = set(table.column_names)
    columns = []
    for each in schema:
        own = table.column(each.name) if each.name in known else None
        if is_partition(each):
            columns.append(_partition(own, each, path, table.num_rows, faults))
        elif own is None:
            columns.append(pa.nulls(table.num_rows, each.type))
        else:
            columns.append(_column(own, each, faults))
    return Window(pa.table(columns, schema=schema), faults)


def _column(column: pa.ChunkedArray, wanted: pa.Field, faults: dict[int, str]) -> Any:
    try:
        return column if column.type == wanted.type else _cast(column, wanted.type)
    except pa.ArrowException:
        return _cell_by_cell(column, wanted, faults)


def _cast(column: Any, kind: pa.DataType) -> Any:
    """Return a column in another type.

    Raises:
        ArrowException: a cell would be another. Fractions alone are rounded.
    """
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if plain_type(column.type) != column.type:
        column = plain(column)
    if kind == pa.float64() and (pa.types.is_decimal(column.type) or pa.types.is_integer(column.type)):
        return _binary(column)
    cast = column.cast(kind)
    # Into a type that holds both, and from decimals, Arrow checks each cell by itself.
    checked = promoted(column.type, kind) == kind or pa.types.is_decimal(column.type)
    if not checked and not _fractions(column.type, kind) and cast.cast(column.type) != column:
        raise pa.ArrowInvalid("it would be another")
    return cast


def _binary(column: Any) -> Any:
    """Return whole numbers and decimals as the nearest fractions of 64 bits, where these spell the same digits.

    Raises:
        ArrowInvalid: one has more digits than such a fraction holds.
    """
    whole = pa.types.is_integer(column.type)
    if whole:
        with suppress(pa.ArrowInvalid):  # one is beyond 2**53, and may be exact
            return column.cast(pa.float64())
    cells = column.to_pylist()
    found = [None if cell is None else float(cell) for cell in cells]
    for cell, near in zip(cells, found, strict=True):
        if cell is not None and cell != (near if whole else Decimal(repr(near))):
            raise pa.ArrowInvalid("it would be another")
    return pa.array(found, pa.float64())


def _fractions(given: pa.DataType, wanted: pa.DataType) -> bool:
    while is_list(given) and is_list(wanted):
        given, wanted = given.value_type, wanted.value_type
    return bool(pa.types.is_floating(given) and pa.types.is_floating(wanted))


def _cell_by_cell(column: pa.ChunkedArray, wanted: pa.Field, faults: dict[int, str]) -> pa.Array:
    cells = []
    for row in range(len(column)):
        try:
            cells.append(_one(_cast(column.take(pa.array([row])), wanted.type)))
        except pa.ArrowException:
            faults.setdefault(row, misfit(wanted, _shown(column, row)))
            cells.append(pa.nulls(1, wanted.type))
    return pa.concat_arrays(cells)


def _one(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _shown(column: pa.ChunkedArray, row: int) -> Any:
    """Return a cell for an error's sentence."""
    try:
        return column[row].as_py()
    except (ValueError, OverflowError):  # a time that Python does not have
        return column.slice(row, 1).cast(pa.string())[0].as_py()


def misfit(wanted: pa.Field, cell: Any) -> str:
    """Return what is wrong with a cell that its column's type does not hold."""
    return f"{wanted.name} is {str(cell)[:_SHOWN]!r}, which is no {wanted.type}"


def constant(value: Any, rows: int, kind: pa.DataType) -> Any:
    """Return a column that holds one value in all rows."""
    return pa.repeat(pa.scalar(value, kind), rows)


def _partition(own: Any, wanted: pa.Field, path: str, rows: int, faults: dict[int, str]) -> Any:
    """Return the path's value in all rows; a cell of the file's own column that differs is its row's fault."""
    value = partition_cell(path, wanted)
    if own is not None and own.null_count < rows:
        for row, cell in enumerate(_comparable(own, wanted.type)):
            if cell is not None and cell != value:
                told = f"{str(cell)[:_SHOWN]!r} in the file and {str(value)!r} in its path"
                faults.setdefault(row, f"{wanted.name} is {told}")
    return constant(value, rows, wanted.type)


def _comparable(own: Any, kind: pa.DataType) -> list[Any]:
    """Return cells in a partition's type, as text those that it does not hold."""
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
    """Return the cells of JSON objects as a column."""
    cells = [row.get(wanted.name) for row in rows]
    if is_partition(wanted):
        known = [None if cell is None else str(cell) for cell in cells]
        return _partition(pa.chunked_array([known], pa.string()), wanted, path, len(cells), faults)
    try:
        column = pa.array(cells, wanted.type)
        # Arrow cuts the fractions of what is to be whole, and makes numbers of true and false, and says nothing.
        strange = _holds_fractions(wanted.type) and any(map(_holds_bool, cells))
        if not strange and column.to_pylist() == cells:
            return column
    except (pa.ArrowException, OverflowError):
        pass
    for row, cell in enumerate(cells):
        if not _holds(wanted.type, cell):
            faults.setdefault(row, misfit(wanted, cell))
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


def _holds(kind: pa.DataType, cell: Any) -> bool:
    try:
        return _same(pa.array([cell], kind)[0].as_py(), cell)
    except (pa.ArrowException, OverflowError):
        return False


def _same(found: Any, given: Any) -> bool:
    """Return whether a cell came out as it was given; keys that it lacks are null."""
    if isinstance(found, dict):
        known = isinstance(given, dict) and all(name in found or value is None for name, value in given.items())
        return known and all(_same(value, given.get(name)) for name, value in found.items())
    if isinstance(found, list):
        return isinstance(given, list) and len(found) == len(given) and all(map(_same, found, given))
    return bool(found == given) and isinstance(found, bool) == isinstance(given, bool)
