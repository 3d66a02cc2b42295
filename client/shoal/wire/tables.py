"""Batches of Ray Data, Daft and Spark: their columns as inputs, and the outputs as additional columns.

A batch is a dict of arrays, a pandas frame, or an Arrow table. A missing value is null. The type of an output column
depends on the model's signature alone, so it is the same whether all, some or no rows failed. Types that numpy cannot
represent with nulls (integers, text) are Arrow arrays, which Ray keeps unchanged, unlike masked arrays.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from shoal.errors import InvalidInput
from shoal.wire.columns import check_twice, listed, places_of
from shoal.wire.datatypes import numpy_dtype, object_array
from shoal.wire.signature import Signature, Tensor
from shoal.wire.values import column_values, without_flags
from shoal_schema.wire.datatypes import Array

Wanted = str | Sequence[str]
"""A column, or several numeric columns that form one input."""
Failed = Mapping[int, str]
"""Error message by row, for rows without outputs."""
_ARROW_LEAVES: Final = {"BOOL": "bool_", "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "float32"}


def is_table(batch: Any) -> bool:
    """Return whether a batch is an Arrow table."""
    return hasattr(type(batch), "column_names")


def names_in(batch: Any) -> list[str]:
    """Return the column names of a batch."""
    return list(batch.column_names if is_table(batch) else batch.keys())


def rows_in(batch: Any) -> int:
    """Return the number of rows of a batch."""
    if not isinstance(batch, Mapping):
        return int(batch.num_rows if is_table(batch) else len(batch))
    return len(next(iter(batch.values()), ()))


def chosen_columns(columns: Mapping[str, Wanted] | None, batch: Any, signature: Signature) -> dict[str, Wanted]:
    """Return the column or columns of each input: from ``columns``, otherwise matched by name.

    Columns of the batch that the model does not have are ignored.

    Raises:
        InvalidInput: an input has no column, or a named column or input does not exist.
    """
    # Three sources of names: the argument, the model's column names, the names of the inputs.
    there, inputs = names_in(batch), {tensor.name: tensor for tensor in signature.inputs}
    if columns is None:
        own = {name for each in signature.inputs for name in (each.name, *each.columns)}
        check_twice([name for name in there if name in own])
    if columns is None and any(tensor.columns for tensor in signature.inputs):

        def holds_scalars(name: str) -> bool:
            values = column_values(batch[name])
            return values.ndim == 1 and not (values.dtype == object and len(values) and np.ndim(values[0]) > 0)

        places = places_of(signature, there, holds_scalars, ignore_extra=True)
        return {name: name if parts is None else parts for name, parts in places.items()}
    chosen = dict({name: name for name in inputs if name in there} if columns is None else columns)
    flat = [name for each in chosen.values() for name in ([each] if isinstance(each, str) else each)]
    if unknown := [name for name in chosen if name not in inputs]:
        raise InvalidInput(f"columns: the model has no input {unknown[0]}, only {listed(list(inputs))}")
    known = set(there)
    if missing := [name for name in flat if name not in known]:
        raise InvalidInput(f"columns: the batch has no column {listed(missing)}, only {listed(there)}")
    if bare := [name for name, tensor in inputs.items() if name not in chosen and not tensor.optional]:
        raise InvalidInput(
            f"input {bare[0]} has no column. Name one with columns={{{bare[0]!r}: COLUMN}}, of {listed(there)}"
        )
    return {
        name: wanted if isinstance(wanted, str) else _placed(inputs[name], wanted) for name, wanted in chosen.items()
    }


def _placed(tensor: Tensor, wanted: Sequence[str]) -> Sequence[str]:
    """Return the model's column for each given column.

    The names are matched if all are the model's, otherwise the positions.

    Raises:
        InvalidInput: a column of the model is listed at the position of another.
    """
    if sorted(wanted) == sorted(tensor.columns):
        return tensor.columns
    for place, (given, own) in enumerate(zip(wanted, tensor.columns, strict=False), 1):
        if given != own and given in tensor.columns:
            raise InvalidInput(
                f"columns: {given} is at position {place} of input {tensor.name}, where the model has {own}. List the"
                f" columns in the model's order: {listed(tensor.columns)}"
            )
    return wanted


def inputs_of(batch: Any, chosen: Mapping[str, Wanted], signature: Signature) -> dict[str, Array]:
    """Return the values of each input, by name.

    Values are arrays of numbers, or arrays of objects in which None stands for null.
    """
    return {each.name: _values(batch, chosen[each.name], each) for each in signature.inputs if each.name in chosen}


def _values(batch: Any, wanted: Wanted, tensor: Tensor) -> Array:
    if isinstance(wanted, str):
        values: Array = without_flags(column_values(batch[wanted]), tensor)
        if not tensor.datatype.startswith(("INT", "UINT")) or values.dtype.kind != "f" or values.ndim != 1:
            return values
        # numpy stores integers with nulls as floats with NaN: restore the integers, with None for null.
        known = values[~np.isnan(values)]
        if known.size == values.size or not np.isfinite(known).all() or (known % 1).any():
            return values
        return object_array((None if np.isnan(each) else int(each) for each in values), values.shape)
    parts = [column_values(batch[name]) for name in wanted]
    if tensor.columns:
        parts = [without_flags(part, tensor) for part in parts]
    if all(part.dtype != object for part in parts):
        return np.stack(parts, axis=1)
    if tensor.nullable:  # a null is NaN within its row
        return np.stack([_with_nan(part) for part in parts], axis=1)
    # A null makes the whole row null.
    rows = zip(*parts, strict=True)
    return object_array((None if any(each is None for each in row) else list(row) for row in rows), (len(parts[0]),))


def _with_nan(values: Array) -> Array:
    """Return a column of numbers with NaN for null; any other column unchanged."""
    if values.dtype != object:
        return values
    found = [np.nan if each is None else each for each in values]
    made = np.asarray(found)
    mixed = any(isinstance(each, bool | np.bool_) for each in found)
    return values if mixed or made.dtype.kind not in "iuf" or made.ndim != 1 else made


def with_columns(batch: Any, outputs: Mapping[str, tuple[Tensor, Array]], failed: Failed, error_column: str) -> Any:
    """Return the batch with an additional column for each output, and one for errors.

    Args:
        batch: the rows.
        outputs: by column, the model's output and its values: an array of objects with None for null.
        failed: the rows without outputs.
        error_column: the name of the column of errors.
    """
    import pyarrow  # noqa: PLC0415 (optional; Ray Data, Daft and Spark depend on it)

    arrays = {name: _arrow(values, tensor, pyarrow) for name, (tensor, values) in outputs.items()}
    arrays[error_column] = pyarrow.array([failed.get(row) for row in range(rows_in(batch))], pyarrow.string())
    if is_table(batch):
        for name, array in arrays.items():
            batch = batch.append_column(name, array)
        return batch
    # Ray's default: a dict of numpy arrays.
    if isinstance(batch, Mapping):
        for name, (tensor, values) in outputs.items():
            # Floats with one free dimension fit a numpy array, with NaN for null.
            if numpy_dtype(tensor.datatype).kind == "f" and sum(n < 0 for n in tensor.shape) == 1:
                shape = tensor.shape[: tensor.batch_dim] + tensor.shape[tensor.batch_dim + 1 :]
                arrays[name] = np.full((len(values), *shape), np.nan, numpy_dtype(tensor.datatype))
                for row, value in enumerate(values):
                    if value is not None:
                        arrays[name][row] = value
        return {**batch, **arrays}
    from pandas import Series  # noqa: PLC0415 (the batch is a pandas frame)
    from pandas.arrays import ArrowExtensionArray  # noqa: PLC0415 (likewise)

    return batch.assign(**{name: Series(ArrowExtensionArray(each), batch.index) for name, each in arrays.items()})


def _arrow(values: Array, tensor: Tensor, pyarrow: Any) -> Any:
    """Return an output as an Arrow array: dimensions as nested lists, JSON as text."""
    if tensor.datatype == "BYTES":
        raw = not tensor.is_json and tensor.content_types not in ((), ("text/plain",))
        kind: Any = pyarrow.binary() if raw else pyarrow.string()
        values = object_array(
            (None if each is None else _element(each, tensor, raw=raw) for each in values), values.shape
        )
    else:
        kind = getattr(pyarrow, _ARROW_LEAVES.get(tensor.datatype, tensor.datatype.lower()))()
    # One level of lists for each dimension of a row.
    for _ in range(len(tensor.shape) - 1):
        kind = pyarrow.list_(kind)
    plain = len(tensor.shape) < 3
    return pyarrow.array([each if plain or each is None else each.tolist() for each in values], kind)


def _element(value: Any, tensor: Tensor, *, raw: bool) -> Any:
    if isinstance(value, np.ndarray):
        return [_element(each, tensor, raw=raw) for each in value]
    if tensor.is_json:
        return orjson.dumps(value).decode()
    return value if raw or isinstance(value, str) else value.decode(errors="replace")
