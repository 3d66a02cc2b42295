"""JSON lines: one object, which is one row, per line. Pure."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from shoal_runtime.codecs.json_data import exact_json
from shoal_runtime.offline.partitions import partition_column
from shoal_runtime.offline.schemas import InputSchema, is_list, is_partition, promoted
from shoal_runtime.offline.windows import Window, cast_error

_NESTED: Final = (dict, list)
NO_TYPE: Final = "holds only values without a type, or beyond 64 bits"
_APART: Final = re.compile(rb'"\s+:')


class _DuplicateKey(ValueError):
    """A JSON object has two values of one key."""


def parsed_line(line: bytes) -> dict[str, Any] | str:
    """Parse a line as a JSON object; return an error message if that fails."""
    try:
        row = exact_json(line)
        if isinstance(row, dict):
            # The parser keeps the last of two equal keys. Where a line has as many `":` as its objects have keys, no
            # key is there twice; only other lines are parsed again, by a slower parser that checks.
            places = line.count(b'":')
            if _APART.search(line) or (places != len(row) and places != _keys(row)):
                json.loads(line, object_pairs_hook=_checked)
    except _DuplicateKey as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"the line is not JSON: {error}"
    return row if isinstance(row, dict) else "the line is JSON, but not an object"


def _keys(value: dict[str, Any] | list[Any]) -> int:
    """Count the keys of all objects in a value, at any depth."""
    inner = value.values() if isinstance(value, dict) else value
    return (len(value) if isinstance(value, dict) else 0) + sum(_keys(each) for each in inner if type(each) in _NESTED)


def _checked(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    # Equal keys replace each other in a dict, so it is shorter than the pairs.
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _DuplicateKey(f"the line has two values of the key {twice[:60]!r}")
    return found


def kinds_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Counter[pa.DataType]]:
    """Count the types of the values of each key, over JSON objects."""
    counted = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        cells = [row[name] for row in rows if row.get(name) is not None]
        if (kind := _inferred(cells)) is not None:
            counted[name] = Counter({kind: len(cells)})
        else:
            # Values of several types: each is inferred alone.
            counted[name] = Counter(kind for cell in cells if (kind := _inferred([cell])) is not None)
    return counted


def _inferred(cells: Sequence[Any]) -> pa.DataType | None:
    with suppress(pa.ArrowException, OverflowError):
        return pa.array(cells).type
    # Arrow infers int64 for integers, and fails for one beyond it. Of a fraction it would keep the integer part.
    if all(type(cell) is int for cell in cells):
        with suppress(pa.ArrowException, OverflowError):
            return pa.array(cells, pa.uint64()).type
    return None


def chosen(counted: Mapping[str, Counter[pa.DataType]]) -> InputSchema:
    """Return the schema of JSON objects from the counted types of each key.

    A column has its most frequent type, widened to hold the values of the others where possible.
    """
    fields, conflicts = [], {}
    for name, counter in counted.items():
        kind = pa.null()
        for other, _ in counter.most_common():
            kind = kind if (both := promoted(kind, other)) is None else both
        if not counter:
            conflicts[name] = f"the column {name} {NO_TYPE}"
        elif _is_empty(kind):
            conflicts[name] = f"the column {name} holds objects without keys. Leave it out with --keep"
        fields.append(pa.field(name, pa.string() if pa.types.is_null(kind) else kind))
    return InputSchema(pa.schema(fields), conflicts)


def _is_empty(kind: pa.DataType) -> bool:
    """Return whether a type contains a struct without fields.

    Parquet does not support such structs.
    """
    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(_is_empty(each.type) for each in kind)
    return is_list(kind) and _is_empty(kind.value_type)


def from_lines(lines: Sequence[bytes], schema: pa.Schema, path: str = "") -> Window:
    """Parse JSON lines to a table with ``schema``, and errors of invalid rows."""
    rows = [parsed_line(line) for line in lines]
    faults = {row: error for row, error in enumerate(rows) if isinstance(error, str)}
    good = [{} if isinstance(row, str) else row for row in rows]
    columns = [cells_column(good, each, faults, path) for each in schema]
    return Window(pa.table(columns, schema=schema), faults)


def cells_column(rows: Sequence[Mapping[str, Any]], wanted: pa.Field, faults: dict[int, str], path: str = "") -> Any:
    """Return one key of JSON objects as a column; add errors to ``faults``."""
    cells = [row.get(wanted.name) for row in rows]
    if is_partition(wanted):
        texts = [None if cell is None else str(cell) for cell in cells]
        return partition_column(pa.chunked_array([texts], pa.string()), wanted, path, len(cells), faults)
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
    """Return whether a cell is equal to its value before a cast.

    A missing key counts as null.
    """
    if isinstance(found, dict):
        extra_null = isinstance(given, dict) and all(name in found or value is None for name, value in given.items())
        return extra_null and all(_same(value, given.get(name)) for name, value in found.items())
    if isinstance(found, list):
        return isinstance(given, list) and len(found) == len(given) and all(map(_same, found, given))
    return bool(found == given) and isinstance(found, bool) == isinstance(given, bool)
