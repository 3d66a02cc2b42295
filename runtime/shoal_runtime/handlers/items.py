"""Conversion of wire arrays to arguments of a handler: one item per row, or one batch of tensors."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from shoal_runtime.codecs.json_data import exact_json
from shoal_runtime.errors import ItemError
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_runtime.signature.tensors import Signature
from shoal_runtime.tensors.library import Library
from shoal_schema.wire.columns import NULL
from shoal_schema.wire.datatypes import DTYPES, Array, float32_to_bfloat16
from shoal_schema.wire.elements import object_array


def row_item(inputs: Mapping[str, Array], row: int, signature: Signature) -> Any:
    """Return one row as a handler's item: a value if the model has one input, else a dict by input.

    A null becomes None.

    Raises:
        ItemError: a text is not UTF-8, or an element is not JSON.
    """
    if len(signature.inputs) == 1:
        spec = signature.inputs[0]
        return _value(inputs[spec.name], row, spec)
    return {spec.name: _value(inputs[spec.name], row, spec) for spec in signature.inputs if spec.name in inputs}


def unreadable_rows(inputs: Mapping[str, Array], signature: Signature) -> dict[int, str]:
    """Return the rows whose `BYTES` elements cannot be decoded, with the error of each."""
    found: dict[int, str] = {}
    for spec in signature.inputs:
        array = inputs.get(spec.name)
        # Any bytes are valid without one of these types.
        if array is None or not ("text/plain" in spec.media_types or "application/json" in spec.media_types):
            continue
        for row in range(array.shape[spec.batch_dim]):
            try:
                _value(array, row, spec)
            except ItemError as error:
                found.setdefault(row, str(error))
    return found


def without_rows(inputs: Mapping[str, Array], rows: Sequence[int], signature: Signature) -> dict[str, Array]:
    """Return all inputs without the given rows."""
    given = [spec for spec in signature.inputs if spec.name in inputs]
    return {spec.name: np.delete(inputs[spec.name], rows, spec.batch_dim) for spec in given}


def tensor_batch(inputs: Mapping[str, Array], signature: Signature, library: Library) -> dict[str, Any]:
    """Convert the inputs to tensors by name; an omitted mask becomes all ones.

    `BYTES` inputs become arrays of values if the library supports these, else lists with one value per row.

    Raises:
        ItemError: a `BYTES` element cannot be decoded (see `unreadable_rows`).
    """
    batch: dict[str, Any] = {}
    for spec in signature.inputs:
        if spec.name not in inputs:
            continue
        array = inputs[spec.name]
        if spec.datatype == "BYTES" and library.holds_text:
            batch[spec.name] = _read(array, spec)
        elif spec.datatype == "BYTES":
            batch[spec.name] = [_value(array, row, spec) for row in range(array.shape[spec.batch_dim])]
        else:
            batch[spec.name] = library.from_wire(array, spec.datatype)
    # Masks for padded inputs that clients omit.
    masks: dict[str, Any] = {}
    for spec in signature.inputs:
        mask = signature.input(spec.pad_mask) if spec.pad_mask is not None else None
        if mask is not None and mask.name not in batch and spec.name in batch and spec.pad_axis is not None:
            shape = batch[spec.name].shape[spec.batch_dim], batch[spec.name].shape[spec.pad_axis]
            masks[mask.name] = library.filled(shape, mask.datatype, 1)
    if not masks:
        return batch
    made = {**masks, **batch}
    # In the signature's order, as in warm-up: captured graphs are keyed by it.
    return {spec.name: made[spec.name] for spec in signature.inputs if spec.name in made}


def batch_of_items(items: Sequence[Any], signature: Signature, library: Library) -> Any:
    """Convert items of `warmup_items()` to the argument of `forward`, for a handler without `preprocess`.

    Raises:
        ValueError: an item is not a row of the signature.
    """
    # Without tensors the batch is the list of items.
    if all(spec.datatype == "BYTES" for spec in signature.inputs) and not library.holds_text:
        return list(items)
    batch: dict[str, Any] = {}
    for spec in signature.inputs:
        if len(signature.inputs) == 1:
            values = list(items)
        elif all(isinstance(item, Mapping) for item in items):
            values = [item[spec.name] for item in items if spec.name in item]
        else:
            raise ValueError(f"warmup_items() returns a {type(items[0]).__name__}. {_ITEM}")
        if not values and spec.optional:
            continue
        if len(values) < len(items):
            raise ValueError(f"an item of warmup_items() has no {spec.name}. {_ITEM}")
        if spec.datatype != "BYTES":
            batch[spec.name] = library.from_wire(_stacked(values, spec), spec.datatype)
        else:
            shape = (len(values), *np.shape(values[0]))
            batch[spec.name] = object_array(values, shape) if library.holds_text and len(shape) == 1 else values
    return batch


_ITEM: Final = (
    "Without preprocess, an item is one row without the batch dimension: the value of the only input, or a dict "
    "of values by input"
)


def _stacked(values: Sequence[Any], spec: TensorSpec) -> Array:
    # Rows may be lists, arrays or scalars.
    rows = [np.asarray(value) for value in values]
    fits = all(
        len(row.shape) == len(spec.row_shape)
        and all(size in (ANY, own) for size, own in zip(spec.row_shape, row.shape, strict=True))
        for row in rows
    )
    if not fits or len({row.shape for row in rows}) > 1:
        shapes = sorted({row.shape for row in rows})
        raise ValueError(
            f"warmup_items() returns rows of shapes {[list(shape) for shape in shapes]} for {spec.name}; expected"
            f" {list(spec.row_shape)}. {_ITEM}"
        )
    if spec.datatype == "BF16":
        return float32_to_bfloat16(np.stack(rows, spec.batch_dim).astype(np.float32))
    return np.stack(rows, spec.batch_dim).astype(DTYPES[spec.datatype])


def _value(array: Array, row: int, spec: TensorSpec) -> Any:
    value = array.take(row, spec.batch_dim) if spec.batch_dim else array[row]
    if spec.datatype != "BYTES":
        return value
    return _element(value, spec) if isinstance(value, bytes) else _read(value, spec)


def _read(array: Array, spec: TensorSpec) -> Array:
    read = np.empty_like(array)
    for index, element in np.ndenumerate(array):
        read[index] = _element(element, spec)
    return read


def _element(element: bytes, spec: TensorSpec) -> Any:
    if spec.nullable and element == NULL:
        return None
    if "application/json" in spec.media_types:
        try:
            return exact_json(element)
        except (orjson.JSONDecodeError, RecursionError) as error:
            raise ItemError(f"{spec.name} is not JSON: {error}") from None
    if "text/plain" in spec.media_types:
        try:
            return element.decode()
        except UnicodeDecodeError:
            raise ItemError(f"{spec.name} is not UTF-8 text") from None
    return element
