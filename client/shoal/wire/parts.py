"""Split a batch into parts for one request each: rows of one shape, within the model's limits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import InvalidInput
from shoal.wire.items import column_tensor, encode_item
from shoal.wire.portions import bytes_of
from shoal.wire.signature import Signature, Tensor
from shoal.wire.values import null_of
from shoal_schema.wire.datatypes import Array


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a batch, by index, and their tensors."""

    rows: Sequence[int]
    tensors: Mapping[str, Array]

    def cut(self, most_rows: int, signature: Signature) -> Iterator["Part"]:
        """Yield the rows in parts of at most ``most_rows`` rows."""
        axes = {tensor.name: tensor.batch_dim for tensor in signature.inputs}
        for start in range(0, len(self.rows), most_rows):
            rows = range(start, min(start + most_rows, len(self.rows)))
            tensors = {name: array.take(rows, axes[name]) for name, array in self.tensors.items()}
            yield Part(self.rows[start : start + most_rows], tensors)

    def lighter(self, most_bytes: int, signature: Signature) -> Iterator["Part"]:
        """Yield the rows in parts of at most ``most_bytes`` bytes, or of one row."""
        if len(self.rows) == 1 or bytes_of(self.tensors) <= most_bytes:
            yield self
        else:
            for half in self.cut((len(self.rows) + 1) // 2, signature):
                yield from half.lighter(most_bytes, signature)


def parts_of(inputs: Mapping[str, Array], rows: int, signature: Signature) -> tuple[list[Part], dict[int, str]]:
    """Return the valid rows, grouped by shape, and the error message of each invalid row.

    Args:
        inputs: the values of each input; None is null.
        rows: the number of rows.
        signature: the model's signature.
    """
    taken = [tensor for tensor in signature.inputs if tensor.name in inputs]
    try:
        return [Part(range(rows), {each.name: _together(inputs[each.name], each, signature) for each in taken})], {}
    except InvalidInput:
        pass
    # A row is invalid, or shapes differ: check each row alone, and group by shape.
    # By the shapes of all inputs.
    groups: dict[Any, list[tuple[int, dict[str, Array]]]] = {}
    failed: dict[int, str] = {}
    for row in range(rows):
        try:
            tensors = _row({name: values[row] for name, values in inputs.items()}, signature)
        except InvalidInput as error:
            failed[row] = error.message
        else:
            groups.setdefault(tuple((name, each.shape) for name, each in tensors.items()), []).append((row, tensors))
    axes = {tensor.name: tensor.batch_dim for tensor in signature.inputs}
    parts = []
    for group in groups.values():
        tensors = {name: np.concatenate([each[name] for _, each in group], axes[name]) for name in group[0][1]}
        parts.append(Part([row for row, _ in group], tensors))
    return parts, failed


def _together(values: Array, tensor: Tensor, signature: Signature) -> Array:
    """Return one tensor for all rows.

    Raises:
        InvalidInput: the rows do not fit together; callers replace the message.
    """
    if not tensor.nullable and values.dtype == object and any(each is None for each in values):
        raise InvalidInput("null")
    if values.dtype == object and tensor.datatype != "BYTES" and len(values):
        try:
            values = np.stack([np.asarray(each) for each in values])
        except ValueError as error:
            raise InvalidInput(str(error)) from error
    # A number counts as a row of one where the input takes such rows.
    if values.ndim == 1 and tensor.shape[1:] == (1,):
        values = values[:, None]
    if values.ndim != len(tensor.shape) and values.dtype != object:
        raise InvalidInput("another shape")
    return _checked(column_tensor(values, tensor), tensor, signature)


def _row(item: Mapping[str, Any], signature: Signature) -> dict[str, Array]:
    """Return the tensors of one row.

    Raises:
        InvalidInput: a value is null or does not fit.
    """
    inputs = {tensor.name: tensor for tensor in signature.inputs}
    named: dict[str, Any] = {}
    for name, value in item.items():
        tensor = inputs[name]
        if value is None:
            named[name] = null_of(tensor)
        elif (
            tensor.datatype == "BYTES" and isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim > 1
        ):
            from PIL import Image  # noqa: PLC0415 (batches with pictures as arrays come from programs that have it)

            named[name] = Image.fromarray(value)
        else:
            # A number counts as a row of one where the input takes such rows.
            named[name] = [value] if tensor.shape[1:] == (1,) and np.ndim(value) == 0 else value
    tensors = encode_item(named, signature)
    return {name: _checked(array, inputs[name], signature) for name, array in tensors.items()}


def _checked(array: Array, tensor: Tensor, signature: Signature) -> Array:
    shape, wanted = array.shape[: tensor.batch_dim] + array.shape[tensor.batch_dim + 1 :], signature.row_shape(tensor)
    if len(shape) != len(wanted) or any(n not in (-1, m) for n, m in zip(wanted, shape, strict=True)):
        raise InvalidInput(f"input {tensor.name} takes rows of shape {list(wanted)}, not {list(shape)}")
    return array
