"""Convert items to tensors: cast rows to the datatypes of the model's signature.

A cast that would lose information (a fraction, a sign, a range) is rejected.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import orjson

from shoal.errors import InvalidInput
from shoal.wire.columns import listed, only_input, places_of
from shoal.wire.datatypes import numpy_dtype, object_array
from shoal.wire.pictures import is_picture, picture_bytes
from shoal.wire.rows import by_name
from shoal.wire.signature import Signature, Tensor
from shoal.wire.values import date_text, is_gap, is_null, null_of, numbers_of, without_flags
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError

Made = TypeVar("Made")
_UNEVEN = "the nested lists have different lengths. Pad them, or pass each as an item of its own"
Items = Any  # a sequence of items, an array, or a data frame


def encode_item(item: Any, signature: Signature) -> dict[str, Array]:
    """Return a tensor for each input of one item, with a batch dimension of 1 if the model batches.

    Raises:
        InvalidInput: an input is missing or unknown, or a value does not fit its datatype.
    """
    if signature.batches:
        return encode_items([item], signature)
    named = _by_name(item, signature)
    return {
        tensor.name: _cast(named[tensor.name], tensor, len(tensor.shape))
        for tensor in signature.inputs
        if tensor.name in named
    }


def encode_items(items: Items, signature: Signature, first: int | None = None) -> dict[str, Array]:
    """Return a tensor for each input of several items, stacked along the input's batch dimension.

    Args:
        items: the rows.
        signature: the model's signature.
        first: the index of the first row in the client's batch; None for a single item.

    Raises:
        InvalidInput: as in `encode_item`; or there are no items, the model does not batch, or the rows have different
            shapes. The message names the row.
    """
    check_countable(items, signature)
    rows = _for_each(lambda item: _by_name(item, signature), items, first)

    def value(row: Mapping[str, Any], tensor: Tensor) -> Any:
        if tensor.name not in row and not tensor.nullable:
            raise InvalidInput(f"input {tensor.name} is missing in one of the items")
        return row.get(tensor.name)

    return {
        tensor.name: _stack(_for_each(partial(value, tensor=tensor), rows, first), tensor, first)
        for tensor in signature.inputs
        if any(tensor.name in row for row in rows)
    }


def column_tensor(values: Array, tensor: Tensor) -> Array:
    """Return the tensor of a column whose rows have one shape, cast in one step.

    Raises:
        InvalidInput: a row does not fit; the message does not name the row.
    """
    return np.moveaxis(_cast(values, tensor, len(tensor.shape)), 0, tensor.batch_dim)


def check_countable(items: Any, signature: Signature) -> None:
    """Raise InvalidInput if the model does not batch, or ``items`` is empty or no sequence."""
    if not signature.batches:
        raise InvalidInput(f"model {signature.name} takes no batches. Call predict for each item")
    if isinstance(items, str | bytes | Mapping) or not hasattr(items, "__len__"):
        kind = type(items).__name__
        raise InvalidInput(f"predict_batch takes a list or array of items, not a {kind}")
    if not len(items):
        raise InvalidInput("predict_batch takes at least one item, not 0")


def _by_name(item: Any, signature: Signature) -> Mapping[str, Any]:
    """Return the value of each input, by name; a bare value belongs to the only required input."""
    item = by_name(item, signature)
    names = [tensor.name for tensor in signature.inputs]
    only = only_input(signature)
    # A dict names inputs, or it is the JSON value of the only input.
    named = isinstance(item, Mapping) and not (only is not None and only.is_json and set(item) - set(names))
    if only is not None and not named:
        return {only.name: item}
    if not isinstance(item, Mapping):
        raise InvalidInput(f"model {signature.name} has several inputs. Pass a dict of {listed(names)}")
    places = places_of(signature, item, lambda name: np.ndim(item[name]) == 0)
    return {
        tensor.name: _nested(item[tensor.name], tensor, signature)
        if places[tensor.name] is None
        else [without_flags(item[name], tensor) for name in tensor.columns]
        for tensor in signature.inputs
        if tensor.name in places
    }


def _nested(value: Any, tensor: Tensor, signature: Signature) -> Any:
    """Return the value of an input without column names.

    A dict of columns becomes a list in column order. A scalar becomes a list of one if the input's rows have one
    number.
    """
    value = value if tensor.is_json else by_name(value, signature, tensor)
    if tensor.columns and isinstance(value, Mapping):
        return _by_name(value, replace(signature, inputs=(tensor,)))[tensor.name]
    if np.ndim(value):
        return value
    value = without_flags(value, tensor)
    return [value] if signature.row_shape(tensor) == (1,) else value


def _for_each(make: Callable[[Any], Made], values: Iterable[Any], first: int | None) -> list[Made]:
    """Convert each value; an error names the row by its index in the client's batch."""
    made: list[Made] = []
    try:
        for value in values:
            made.append(make(value))  # noqa: PERF401 (the length is the index of the row that failed)
    except InvalidInput as error:
        if first is None:
            raise
        row = first + len(made)
        raise InvalidInput(f"row {row}: {error.message}", errors=(RowError(row, 400, error.message),)) from error
    return made


def _stack(values: Sequence[Any], tensor: Tensor, first: int | None) -> Array:
    rank = len(tensor.shape) - 1
    rows = _for_each(lambda value: _cast(value, tensor, rank), values, first)
    # The error names the first row that differs from the most common shape.
    shapes = Counter(row.shape for row in rows)
    if len(shapes) > 1:
        usual = shapes.most_common(1)[0][0]
        odd = (first or 0) + next(index for index, row in enumerate(rows) if row.shape != usual)
        raise InvalidInput(
            f"input {tensor.name}: the rows of one call must have one shape, not"
            f" {' and '.join(str(list(shape)) for shape in sorted(shapes)[:3])} (row {odd} is the first that differs)."
            " Pad them, or call predict for each"
        )
    # Several items passed as one, or one as several; the server checks the other shapes.
    row, alone = rows[0], first is None
    if alone and row.ndim == rank + 1:
        raise InvalidInput(
            f"input {tensor.name}: predict takes one item of {_dimensions(rank)}, not of shape {list(row.shape)}. Call"
            " predict_batch (Python client) for several items, or predict for each"
        )
    if not alone and row.ndim == rank - 1:
        raise InvalidInput(
            f"input {tensor.name}: predict_batch takes a list of items of {_dimensions(rank)}, not of"
            f" {_dimensions(row.ndim)}. Call predict for one item, or put it into a list"
        )
    return np.stack(rows, axis=min(tensor.batch_dim, row.ndim))


def _dimensions(count: int) -> str:
    return "1 dimension" if count == 1 else f"{count or 'no'} dimensions"


def _cast(value: Any, tensor: Tensor, rank: int) -> Array:
    if not tensor.is_json and is_null(value):
        value = null_of(tensor)
    if _hides(value):
        raise InvalidInput(
            f"input {tensor.name}: a masked array would lose its mask and send the masked values. Fill it"
            " (array.filled(0)), and pass the mask as an input of its own if the model has one"
        )
    if tensor.datatype == "BYTES":
        elements = (_as_bytes(element, tensor) for element in _leaves(value, rank))
        return object_array(elements, _lengths(value, tensor, rank))
    wanted = numpy_dtype(tensor.datatype)
    try:
        given = numbers_of(value, tensor, wanted)
        if not _fits(given, wanted):
            if given.dtype.kind in "iu":
                found = f"{given.min()} to {given.max()}"
            elif given.dtype.kind == "U":
                # A text that looks like a path was probably meant as a file.
                text = str(given) if given.ndim == 0 else ""
                stem, _, suffix = text.rpartition(".")
                is_path = text.isprintable() and ("/" in text or bool(stem and suffix.isalnum()))
                found = f"text. If {text!r:.100} is a file, pass pathlib.Path or the open file" if is_path else "text"
            elif given.dtype.kind == "S":
                found = "bytes"
            else:
                found = f"{given.dtype}" if given.dtype != object else "values of mixed or unknown type"
            raise ValueError(f"takes {tensor.datatype}, not {found}")
        # A float that exceeds the range of its datatype would become infinite.
        with np.errstate(over="raise"):
            return given.astype(wanted, copy=False)
    except (ValueError, TypeError, FloatingPointError, OverflowError) as error:
        why = _UNEVEN if "inhomogeneous shape" in str(error) else error
        raise InvalidInput(f"input {tensor.name}: {why}", status=None) from error


def _hides(value: Any) -> bool:
    if isinstance(value, list | tuple):
        # Checking the types first keeps long lists of numbers fast.
        kinds = set(map(type, value))
        return any(issubclass(kind, np.ma.MaskedArray | list | tuple) for kind in kinds) and any(map(_hides, value))
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def _fits(given: Array, wanted: np.dtype[Any]) -> bool:
    """Return whether a cast loses no information except precision of floats."""
    if given.dtype.kind in "iu" and wanted.kind in "iu" and given.size:
        limits = np.iinfo(wanted)
        return bool(limits.min <= int(given.min()) and int(given.max()) <= limits.max)
    # Booleans are not numbers; an empty list has no type.
    if given.dtype.kind == "b" and wanted.kind != "b":
        return given.size == 0
    return given.size == 0 or np.can_cast(given.dtype, wanted, "same_kind")


def _lengths(value: Any, tensor: Tensor, rank: int) -> tuple[int, ...]:
    """Return the lengths of ``rank`` levels of nesting, which must be equal in all branches."""
    # BYTES elements may be lists themselves (JSON), so the rank limits the descent.
    if rank == 0:
        return ()
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        raise InvalidInput(f"input {tensor.name} needs {rank} more levels of lists around {value!r:.40}")
    inner = {_lengths(each, tensor, rank - 1) for each in value}
    if len(inner) > 1:
        raise InvalidInput(f"input {tensor.name}: {_UNEVEN}")
    return (len(value), *(inner.pop() if inner else (0,) * (rank - 1)))


def _leaves(value: Any, rank: int) -> Iterator[Any]:
    if rank == 0:
        yield value
    else:
        for each in value:
            yield from _leaves(each, rank - 1)


def _as_bytes(element: Any, tensor: Tensor) -> bytes:
    if isinstance(element, bytes | bytearray | memoryview):
        return bytes(element)
    if tensor.is_json:
        try:
            return orjson.dumps(element, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:
            raise InvalidInput(f"input {tensor.name}: {error}") from error
    if isinstance(element, str):
        return element.encode()
    if is_gap(element):
        return bytes(null_of(tensor))
    if isinstance(element, np.ndarray) and element.ndim == 0:
        return _as_bytes(element[()], tensor)
    if tensor.logical_type == "datetime":
        return date_text(element, tensor)
    if is_picture(element):
        return picture_bytes(element, tensor)
    raise InvalidInput(f"input {tensor.name} takes bytes or str, not {type(element).__name__}")
