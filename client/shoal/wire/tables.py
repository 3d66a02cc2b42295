"""Batches of Ray Data, Daft and Spark: their columns as a model's inputs, and a model's outputs as more columns.

A batch is a dict of arrays, a frame of pandas, or a table of Arrow. What a row lacks is null. Each output's type
follows from the model's signature alone, so batches of which all, some or no rows failed have the same columns. What
numpy cannot hold so (whole numbers and text with nulls) is an Arrow array among the arrays: Ray keeps that as it is,
and a masked array it does not.
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
"""A column, or several columns of numbers that are one input together."""
Failed = Mapping[int, str]
"""By row, why it has no outputs."""
_ARROW_LEAVES: Final = {"BOOL": "bool_", "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "float32"}


def is_table(batch: Any) -> bool:
    """Return whether a batch is a table of Arrow."""
    return hasattr(type(batch), "column_names")


def names_in(batch: Any) -> list[str]:
    """Return the columns of a batch."""
    return list(batch.column_names if is_table(batch) else batch.keys())


def rows_in(batch: Any) -> int:
    """Return how many rows a batch has."""
    if not isinstance(batch, Mapping):
        return int(batch.num_rows if is_table(batch) else len(batch))
    return len(next(iter(batch.values()), ()))


def chosen_columns(columns: Mapping[str, Wanted] | None, batch: Any, signature: Signature) -> dict[str, Wanted]:
    """Return the column of each input, or columns; by default those with the names that the model has.

    Columns that it does not have are ignored.

    Raises:
        InvalidInput: an input has none, or there is no such column or input.
    """
    there, inputs = names_in(batch), {tensor.name: tensor for tensor in signature.inputs}
    if columns is None:
        own = {name for each in signature.inputs for name in (each.name, *each.columns)}
        check_twice([name for name in there if name in own])
    if columns is None and any(tensor.columns for tensor in signature.inputs):
        places = places_of(signature, there, lambda name: _holds_scalars(batch[name]), ignore_extra=True)
        return {name: name if parts is None else parts for name, parts in places.items()}
    chosen = dict({name: name for name in inputs if name in there} if columns is None else columns)
    flat = [name for each in chosen.values() for name in ([each] if isinstance(each, str) else each)]
    if unknown := [name for name in chosen if name not in inputs]:
        raise InvalidInput(f"columns: the model has no input {unknown[0]}; it has {listed(list(inputs))}")
    known = set(there)
    if missing := [name for name in flat if name not in known]:
        raise InvalidInput(f"columns: the batch has no column {listed(missing)}; it has {listed(there)}")
    if bare := [name for name, tensor in inputs.items() if name not in chosen and not tensor.optional]:
        raise InvalidInput(
            f"no column for input {bare[0]}: columns={{{bare[0]!r}: COLUMN}} names one of {listed(there)}"
        )
    return {
        name: wanted if isinstance(wanted, str) else _placed(inputs[name], wanted) for name, wanted in chosen.items()
    }


def _placed(tensor: Tensor, wanted: Sequence[str]) -> Sequence[str]:
    """Return the columns listed for an input in its own order, if they are its own; others are taken by their place.

    Raises:
        InvalidInput: one of the model's own names stands at the place of another.
    """
    if sorted(wanted) == sorted(tensor.columns):
        return tensor.columns
    for place, (given, own) in enumerate(zip(wanted, tensor.columns, strict=False), 1):
        if given != own and given in tensor.columns:
            raise InvalidInput(
                f"columns: {given} stands at place {place} of input {tensor.name}, where the model has {own}, and it"
                f" has a column {given} of its own: list the columns in the model's order, {listed(tensor.columns)}"
            )
    return wanted


def inputs_of(batch: Any, chosen: Mapping[str, Wanted], signature: Signature) -> dict[str, Array]:
    """Return what each input takes of each row: arrays of numbers, or of objects of which None is null."""
    return {each.name: _values(batch, chosen[each.name], each) for each in signature.inputs if each.name in chosen}


def _values(batch: Any, wanted: Wanted, tensor: Tensor) -> Array:
    if isinstance(wanted, str):
        values = without_flags(column_values(batch[wanted]), tensor)
        return _with_holes(values) if tensor.datatype.startswith(("INT", "UINT")) else values
    parts = [column_values(batch[name]) for name in wanted]
    if tensor.columns:
        parts = [without_flags(part, tensor) for part in parts]
    if all(part.dtype != object for part in parts):
        return np.stack(parts, axis=1)
    if tensor.nullable:  # a null is a gap in its row
        return np.stack([_with_gaps(part) for part in parts], axis=1)
    rows = zip(*parts, strict=True)
    return object_array((None if any(each is None for each in row) else list(row) for row in rows), (len(parts[0]),))


def _with_gaps(values: Array) -> Array:
    """Return a column of numbers with NaN for null; any other as it is."""
    if values.dtype != object:
        return values
    found = [np.nan if each is None else each for each in values]
    made = np.asarray(found)
    mixed = any(isinstance(each, bool | np.bool_) for each in found)
    return values if mixed or made.dtype.kind not in "iuf" or made.ndim != 1 else made


def _holds_scalars(column: Any) -> bool:
    values = column_values(column)
    return values.ndim == 1 and not (values.dtype == object and len(values) and np.ndim(values[0]) > 0)


def _with_holes(values: Array) -> Array:
    """Return whole numbers among which numpy had to write NaN for null as what they were."""
    known = values[~np.isnan(values)] if values.dtype.kind == "f" and values.ndim == 1 else values
    if known.size == values.size or not np.isfinite(known).all() or (known % 1).any():
        return values
    return object_array((None if np.isnan(each) else int(each) for each in values), values.shape)


def with_columns(batch: Any, outputs: Mapping[str, tuple[Tensor, Array]], failed: Failed, error_column: str) -> Any:
    """Return the batch with a column of each output and one of errors.

    Args:
        batch: the rows.
        outputs: by column, the model's output and its values, an array of objects of which None is null.
        failed: the rows that have no outputs.
        error_column: the column of errors.
    """
    import pyarrow  # noqa: PLC0415 (Ray Data, Daft and Spark bring it; nobody else needs it)

    arrays = {name: _arrow(values, tensor, pyarrow) for name, (tensor, values) in outputs.items()}
    arrays[error_column] = pyarrow.array([failed.get(row) for row in range(rows_in(batch))], pyarrow.string())
    if is_table(batch):
        for name, array in arrays.items():
            batch = batch.append_column(name, array)
        return batch
    if isinstance(batch, Mapping):
        floats = {name: _floats(values, tensor) for name, (tensor, values) in outputs.items() if _is_floats(tensor)}
        return {**batch, **arrays, **floats}
    from pandas import Series  # noqa: PLC0415 (it is a frame of pandas)
    from pandas.arrays import ArrowExtensionArray  # noqa: PLC0415

    return batch.assign(**{name: Series(ArrowExtensionArray(each), batch.index) for name, each in arrays.items()})


def _is_floats(tensor: Tensor) -> bool:
    """Return whether an array of numpy holds all rows of an output, NaN being null."""
    return numpy_dtype(tensor.datatype).kind == "f" and sum(n < 0 for n in tensor.shape) == 1


def _floats(values: Array, tensor: Tensor) -> Array:
    shape = tensor.shape[: tensor.batch_dim] + tensor.shape[tensor.batch_dim + 1 :]
    array = np.full((len(values), *shape), np.nan, numpy_dtype(tensor.datatype))
    for row, value in enumerate(values):
        if value is not None:
            array[row] = value
    return array


def _arrow(values: Array, tensor: Tensor, pyarrow: Any) -> Any:
    """Return an output as Arrow has it: dimensions are lists, JSON is its text."""
    if tensor.datatype == "BYTES":
        raw = not tensor.is_json and tensor.content_types not in ((), ("text/plain",))
        kind: Any = pyarrow.binary() if raw else pyarrow.string()
        values = object_array(
            (None if each is None else _element(each, tensor, raw=raw) for each in values), values.shape
        )
    else:
        kind = getattr(pyarrow, _ARROW_LEAVES.get(tensor.datatype, tensor.datatype.lower()))()
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
