"""Conversion of a window's columns to the model's inputs."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from shoal_runtime.batches.collate import collate
from shoal_runtime.offline.converting import converted, fitted_to, iso_texts, parsed, trimmed
from shoal_runtime.offline.mapping import JSON
from shoal_runtime.offline.schemas import is_bytes, is_file, is_list, is_spelled, is_text, is_time, plain
from shoal_runtime.offline.windows import Window
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_runtime.tensors.numpy_tensors import NumpyTensors
from shoal_schema.wire.columns import NULL
from shoal_schema.wire.datatypes import DTYPES, Array

LIBRARY: Final = NumpyTensors()
MAX_DIGITS: Final = 10**19
"""No 64-bit timestamp of any unit reaches it."""


@dataclass(frozen=True, slots=True)
class InputRows:
    """The rows of a window (part of a shard), converted to the model's inputs."""

    values: Mapping[str, Array]
    """By input; the first dimension counts rows. Ragged rows are arrays in an array of objects."""
    keys: Sequence[Hashable]
    """Batch key of each row."""
    sizes: Array
    """Length of each row, to batch rows of about one length."""
    errors: Mapping[int, str]
    """Rows that are not sent to the model, with the reason."""

    @property
    def good(self) -> Array:
        """Return the numbers of the rows without errors."""
        return np.array([row for row in range(len(self.keys)) if row not in self.errors], dtype=np.int64)


def make_rows(window: Window, specs: Sequence[TensorSpec], columns: Mapping[str, Sequence[str]]) -> InputRows:
    """Convert a window's columns to the model's inputs."""
    table, errors = window.table, dict(window.faults)
    values: dict[str, Array] = {}
    for spec in specs:
        if spec.name in columns:
            parts = [_cells(table, name, spec, errors) for name in columns[spec.name]]
            if spec.datatype == "BYTES":
                values[spec.name] = _bytes(parts[0], spec)
            elif len(parts) > 1:
                values[spec.name] = np.stack([_numbers(part, spec, errors) for part in parts], axis=1)
            else:
                values[spec.name] = _tensor(parts[0], spec, errors)
    given = [spec for spec in specs if spec.name in values]
    sizes = np.zeros(table.num_rows, np.int64)
    for spec in given:
        if values[spec.name].dtype == object:
            cells = values[spec.name].reshape(table.num_rows, -1)[:, 0]
            sizes += np.array([each.size if isinstance(each, np.ndarray) else len(each) for each in cells], np.int64)
    # Rows of one batch have the same shapes, but for their padded axes.
    keys: list[Hashable] = [0] * table.num_rows
    if ragged := [spec for spec in given if values[spec.name].dtype == object and spec.datatype != "BYTES"]:
        axes = [None if spec.pad_axis is None else spec.pad_axis - (spec.pad_axis > spec.batch_dim) for spec in ragged]
        keys = [
            tuple(
                tuple(ANY if at == axis else size for at, size in enumerate(values[spec.name][row].shape))
                for spec, axis in zip(ragged, axes, strict=True)
            )
            for row in range(table.num_rows)
        ]
    return InputRows(values, keys, sizes, errors)


def _cells(table: pa.Table, name: str, spec: TensorSpec, errors: dict[int, str]) -> Any:
    """Return a column's cells; errors of cells go to ``errors`` by row."""
    column = table.schema.field(name)
    part = plain(table.column(name))
    if spec.datatype == "BYTES" and JSON not in spec.media_types and is_file(part.type):
        # Images and audio as Hugging Face writes them: bytes beside their path.
        part = pc.struct_field(part, "bytes")
    if spec.datatype != "BYTES" and is_spelled(column):
        texts = trimmed(part)
        part, wrong = parsed(texts, spec.datatype)
        for row, why in wrong.items():
            errors.setdefault(row, f"{name} is {texts[row].as_py()[:60]!r}, which {why}")
    elif spec.logical_type == "datetime" and (pa.types.is_integer(part.type) or pa.types.is_floating(part.type)):
        # Numbers of a date travel as decimal digits.
        digits: list[str | None] = []
        for row, cell in enumerate(part.to_pylist()):
            good = cell is not None and math.isfinite(cell) and abs(cell) < MAX_DIGITS and cell == int(cell)
            digits.append(str(int(cell)) if good else None)
            if cell is not None and not good:
                errors.setdefault(row, f"{name} is {cell}, expected an integer")
        part = pa.array(digits, pa.large_string())
    if part.null_count and not (spec.nullable and not is_list(part.type)):
        which = f" (column '{name}')" if name != spec.name else ""
        for row in np.flatnonzero(_is_null(part)).tolist():
            errors.setdefault(row, f"input '{spec.name}' does not accept null{which}")
    return part


def batch_of_rows(rows: InputRows, chosen: Array, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Return the chosen rows as one batch: padded, with padding masks."""
    given = [spec for spec in specs if spec.name in rows.values]
    # Fast path: no ragged rows, so nothing is padded.
    if not any(rows.values[spec.name].dtype == object and spec.datatype != "BYTES" for spec in given):
        return {spec.name: np.moveaxis(rows.values[spec.name][chosen], 0, spec.batch_dim) for spec in given}
    made = collate([{spec.name: rows.values[spec.name][row] for spec in given} for row in chosen], given, LIBRARY)
    # Text has no shape, so collate leaves it as a list.
    arrays = {name: value if isinstance(value, np.ndarray) else _objects(value) for name, value in made.items()}
    dims = {spec.name: (spec.batch_dim, DTYPES[spec.datatype]) for spec in specs}
    wire = {name: (array, *dims[name]) for name, array in arrays.items() if name in dims}
    return {name: np.moveaxis(array.astype(dtype, copy=False), 0, dim) for name, (array, dim, dtype) in wire.items()}


def _bytes(part: Any, spec: TensorSpec) -> Array:
    # Dates are sent as text, other values without a text form as JSON.
    if is_time(part.type):
        part = iso_texts(part)
    if pa.types.is_null(part.type) or is_text(part.type):
        part = part.cast(pa.large_binary())
    cells = part.to_pylist()
    if not is_bytes(part.type):
        cells = [None if each is None else orjson.dumps(each, default=str) for each in cells]
    # A null that the input does not accept is an error of its row already.
    null = NULL if spec.nullable else b""
    array = _objects([null if each is None else each for each in cells])
    return array.reshape(len(array), *([1] * len(spec.row_shape)))


def _tensor(part: Any, spec: TensorSpec, errors: dict[int, str]) -> Array:
    """Convert a column of numbers or nested lists to rows of an input.

    Rows of different shapes are returned as an array of objects.
    """
    if not is_list(part.type):
        return _fit_rank(_numbers(part, spec, errors), spec, errors)
    # Fast path: all rows of one shape are converted as one flat array.
    shapes, flat = _unfolded(part, len(part))
    if shapes is None or flat.null_count:
        return _row_by_row(part, spec, errors)
    numbers, wrong = converted(flat, spec.datatype)
    if wrong.any():
        return _row_by_row(part, spec, errors)
    return _fit_rank(numbers.reshape(len(part), *shapes), spec, errors)


def _unfolded(part: Any, rows: int) -> tuple[tuple[int, ...] | None, Any]:
    """Flatten a column of nested lists of numbers.

    Returns: The shape of a row (None if rows differ), and the numbers of all rows.
    """
    shape: list[int] = []
    count = rows
    while is_list(part.type):
        lengths = set(pc.unique(pc.list_value_length(part)).to_pylist())
        flat = part.flatten()
        if len(lengths) != 1 or None in lengths or (pa.types.is_fixed_size_list(part.type) and part.null_count):
            return None, _innermost(flat)
        shape.append(lengths.pop())
        # Empty lists and nulls make fewer values than the shape says.
        count *= shape[-1]
        part = flat
    return (tuple(shape), part) if len(part) == count else (None, part)


def _innermost(part: Any) -> Any:
    while is_list(part.type):
        part = part.flatten()
    return part


def _row_by_row(part: Any, spec: TensorSpec, errors: dict[int, str]) -> Array:
    rows = np.empty(len(part), dtype=object)
    kind = _innermost(part).type
    for row, cell in enumerate(part.to_pylist()):
        rows[row] = np.zeros((0,) * len(spec.row_shape), DTYPES[spec.datatype])
        if row in errors or cell is None:
            continue
        try:
            rows[row] = _array(cell, kind, spec)
            _check_shape(rows[row].shape, spec)
        except (ValueError, OverflowError) as error:
            errors.setdefault(row, f"{spec.name}: {error}")
    # Rows that turn out to have one shape are stacked after all.
    kept = {array.shape for row, array in enumerate(rows) if row not in errors}
    if len(kept) == 1 and not errors:
        return np.stack(list(rows))
    return rows


def _array(cell: Any, kind: Any, spec: TensorSpec) -> Array:
    """Convert nested lists of numbers to an array.

    Raises:
        ValueError: the lists are ragged or hold nulls, or a number does not fit the datatype.
    """
    floating = pa.types.is_floating(kind)
    # numpy keeps fractions, with NaN for null; integers and decimals it might convert, so they stay objects.
    given = np.array(cell, np.float64 if floating else object)
    suspect = np.isnan(given).any() if floating else any(each is None or isinstance(each, list) for each in given.flat)
    if suspect and _is_odd(cell, given.ndim, nullable=spec.nullable):
        raise ValueError("it holds nulls, or lists of different lengths")
    if floating:
        found, wrong = fitted_to(given, spec.datatype)
    else:
        flat = pa.array(given.ravel().tolist(), kind)
        found, wrong = (each.reshape(given.shape) for each in converted(flat, spec.datatype))
        found = _with_nan(found, _is_null(flat).reshape(given.shape))
    if wrong.any():
        raise ValueError(f"{given[wrong][0]} does not fit {spec.datatype}")
    return found


def _is_odd(cell: Any, depth: int, *, nullable: bool) -> bool:
    """Return whether a nested list holds forbidden nulls, or lists of different depths."""
    if isinstance(cell, list):
        return depth == 0 or any(_is_odd(each, depth - 1, nullable=nullable) for each in cell)
    return cell is None and (depth > 0 or not nullable)


def _numbers(part: Any, spec: TensorSpec, errors: dict[int, str]) -> Array:
    """Convert a column to the input's datatype; cells that do not fit are errors of their rows."""
    found, wrong = converted(part, spec.datatype)
    for row in np.flatnonzero(wrong).tolist():
        errors.setdefault(row, f"{spec.name}: {part[row].as_py()} does not fit {spec.datatype}")
    return _with_nan(found, _is_null(part)) if spec.nullable else found


def _with_nan(found: Array, nulls: Array) -> Array:
    return np.where(nulls, np.array(np.nan, found.dtype), found) if nulls.any() else found


def _fit_rank(array: Array, spec: TensorSpec, errors: dict[int, str]) -> Array:
    """Convert rows to the number of dimensions of the model's input.

    Numbers become lists of one number, or the reverse.
    """
    # A column of numbers for a model with rows of one number.
    if array.ndim == 1 and len(spec.row_shape) == 1:
        array = array[:, None]
    elif array.ndim == 2 and array.shape[1] == 1 and not spec.row_shape:
        array = array[:, 0]  # lists of one number each
    try:
        _check_shape(array.shape[1:], spec)
    except ValueError as error:
        for row in range(len(array)):
            errors.setdefault(row, f"{spec.name}: {error}")
    return array


def _check_shape(shape: Sequence[int], spec: TensorSpec) -> None:
    wanted = spec.row_shape
    if len(shape) != len(wanted) or any(want not in (ANY, got) for got, want in zip(shape, wanted, strict=True)):
        raise ValueError(f"a row has the shape {list(shape)}, expected {list(wanted)}")


def _objects(values: Sequence[Any]) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array


def _is_null(part: Any) -> Array:
    found: Array = part.is_null().to_numpy(zero_copy_only=False)
    return found


def lengths(rows: InputRows) -> dict[str, list[int]]:
    """Return the length of each row along the first axis, for each ragged input."""
    return {
        name: [each.shape[0] if each.ndim else 0 for each in array]
        for name, array in rows.values.items()
        if array.dtype == object and len(array) and isinstance(array[0], np.ndarray)
    }
