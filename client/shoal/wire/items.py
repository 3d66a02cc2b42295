"""Items to tensors: the caller's rows, cast to what the model's signature declares.

A cast that would lose something (a fraction, a sign, a range) is refused rather than done.
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
_UNEVEN = "the lists in it have different lengths, so they are no array: pad them, or give each as an item of its own"
Items = Any  # a sequence of items, an array, or a data frame


def one_item(item: Any, signature: Signature) -> dict[str, Array]:
    """Return a tensor per input for one item, with a batch dimension of 1 if the model batches.

    Raises:
        InvalidInput: the item lacks an input, names an unknown one, or does not fit a datatype.
    """
    if signature.batches:
        return many_items([item], signature)
    named = _by_name(item, signature)
    return {
        tensor.name: _cast(named[tensor.name], tensor, len(tensor.shape))
        for tensor in signature.inputs
        if tensor.name in named
    }


def many_items(items: Items, signature: Signature, first: int | None = None) -> dict[str, Array]:
    """Return a tensor per input for several items, stacked along each input's batch dimension.

    Args:
        items: the rows.
        signature: the model's.
        first: the number by which the caller knows the first row; None where there is only one.

    Raises:
        InvalidInput: as for one item; or there are no items, the model does not batch, the rows'
            shapes differ. It names the row.
    """
    check_countable(items, signature)
    rows = _for_each(lambda item: _by_name(item, signature), items, first)
    return {
        tensor.name: _stack(_for_each(partial(_value, tensor=tensor), rows, first), tensor, first)
        for tensor in signature.inputs
        if any(tensor.name in row for row in rows)
    }


def _value(row: Mapping[str, Any], tensor: Tensor) -> Any:
    if tensor.name not in row and not tensor.nullable:
        raise InvalidInput(f"input {tensor.name} is missing in one of the items")
    return row.get(tensor.name)


def column_tensor(values: Array, tensor: Tensor) -> Array:
    """Return the tensor of a column whose rows have one shape, cast at once.

    Raises:
        InvalidInput: a row does not fit, and which is not said.
    """
    return np.moveaxis(_cast(values, tensor, len(tensor.shape)), 0, tensor.batch_dim)


def check_countable(items: Any, signature: Signature) -> None:
    """Raise InvalidInput if there is no item, or items cannot be told apart."""
    if not signature.batches:
        raise InvalidInput(f"model {signature.name} takes no batches: call predict for each item")
    if isinstance(items, str | bytes | Mapping) or not hasattr(items, "__len__"):
        kind = type(items).__name__
        raise InvalidInput(f"predict_batch takes a list or array of items, not a {kind}")
    if not len(items):
        raise InvalidInput("there are no items: predict_batch takes at least one")


def _by_name(item: Any, signature: Signature) -> Mapping[str, Any]:
    """Return the item by input names; a bare value stands for the only required input."""
    item = by_name(item, signature)
    names = [tensor.name for tensor in signature.inputs]
    only = only_input(signature)
    # Does a dict name inputs, or is it the JSON value of the only one?
    named = isinstance(item, Mapping) and not (only is not None and only.is_json and set(item) - set(names))
    if only is not None and not named:
        return {only.name: item}
    if not isinstance(item, Mapping):
        raise InvalidInput(f"model {signature.name} has several inputs: give a dict of {listed(names)}")
    places = places_of(signature, item, lambda name: np.ndim(item[name]) == 0)
    return {
        tensor.name: _nested(item[tensor.name], tensor, signature)
        if places[tensor.name] is None
        else [without_flags(item[name], tensor) for name in tensor.columns]
        for tensor in signature.inputs
        if tensor.name in places
    }


def _nested(value: Any, tensor: Tensor, signature: Signature) -> Any:
    """Return a value named by its input: by the names that it has itself, or as a row of one where such are taken."""
    value = value if tensor.is_json else by_name(value, signature, tensor)
    if tensor.columns and isinstance(value, Mapping):
        return _by_name(value, replace(signature, inputs=(tensor,)))[tensor.name]
    if np.ndim(value):
        return value
    value = without_flags(value, tensor)
    return [value] if signature.row_shape(tensor) == (1,) else value


def _for_each(make: Callable[[Any], Made], values: Iterable[Any], first: int | None) -> list[Made]:
    """Return what is made of each value; who fails is named by the caller's number."""
    made: list[Made] = []
    try:
        for value in values:
            made.append(make(value))  # noqa: PERF401 (how many there are tells which one failed)
    except InvalidInput as error:
        if first is None:
            raise
        row = first + len(made)
        raise InvalidInput(f"row {row}: {error.message}", errors=(RowError(row, 400, error.message),)) from error
    return made


def _stack(values: Sequence[Any], tensor: Tensor, first: int | None) -> Array:
    rank = len(tensor.shape) - 1
    rows = _for_each(lambda value: _cast(value, tensor, rank), values, first)
    shapes = Counter(row.shape for row in rows)
    if len(shapes) > 1:
        usual = shapes.most_common(1)[0][0]
        odd = (first or 0) + next(index for index, row in enumerate(rows) if row.shape != usual)
        raise InvalidInput(
            f"input {tensor.name}: the rows of one call must have one shape, these have"
            f" {' and '.join(str(list(shape)) for shape in sorted(shapes)[:3])} (row {odd} is the first unlike most):"
            " pad them, or call predict for each"
        )
    _check_depth(rows[0], tensor, rank, alone=first is None)
    return np.stack(rows, axis=min(tensor.batch_dim, rows[0].ndim))


def _check_depth(row: Array, tensor: Tensor, rank: int, *, alone: bool) -> None:
    """Raise InvalidInput where several items were given as one, or one as several; the server tells the rest."""
    if alone and row.ndim == rank + 1:
        raise InvalidInput(
            f"input {tensor.name}: predict takes one item, of {_dimensions(rank)}, and this has shape"
            f" {list(row.shape)}: for several call predict_batch (of the Python client), or predict for each"
        )
    if not alone and row.ndim == rank - 1:
        raise InvalidInput(
            f"input {tensor.name}: predict_batch takes a list of items, of {_dimensions(rank)} each, and these have"
            f" {_dimensions(row.ndim)}: for one item call predict, or put it into a list"
        )


def _dimensions(count: int) -> str:
    return "1 dimension" if count == 1 else f"{count or 'no'} dimensions"


def _cast(value: Any, tensor: Tensor, rank: int) -> Array:
    if not tensor.is_json and is_null(value):
        value = null_of(tensor)
    if _hides(value):
        raise InvalidInput(
            f"input {tensor.name}: a masked array loses its mask, and what it hides would be sent: fill it first"
            " (array.filled(0)), and give the mask as an input of its own if the model takes one"
        )
    if tensor.datatype == "BYTES":
        elements = (_as_bytes(element, tensor) for element in _leaves(value, rank))
        return object_array(elements, _lengths(value, tensor, rank))
    wanted = numpy_dtype(tensor.datatype)
    try:
        given = numbers_of(value, tensor, wanted)
        if not _fits(given, wanted):
            raise ValueError(f"takes {tensor.datatype}, not {_described(given)}")
        with np.errstate(over="raise"):
            return given.astype(wanted, copy=False)
    except (ValueError, TypeError, FloatingPointError, OverflowError) as error:
        why = _UNEVEN if "inhomogeneous shape" in str(error) else error
        raise InvalidInput(f"input {tensor.name}: {why}", status=None) from error


def _hides(value: Any) -> bool:
    """Return whether a value is or holds an array of which something is masked."""
    if isinstance(value, list | tuple):
        # Long lists of numbers are passed over at the price of a look at their types.
        kinds = set(map(type, value))
        return any(issubclass(kind, np.ma.MaskedArray | list | tuple) for kind in kinds) and any(map(_hides, value))
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def _fits(given: Array, wanted: np.dtype[Any]) -> bool:
    if given.dtype.kind in "iu" and wanted.kind in "iu" and given.size:
        limits = np.iinfo(wanted)
        return bool(limits.min <= int(given.min()) and int(given.max()) <= limits.max)
    if given.dtype.kind == "b" and wanted.kind != "b":
        return given.size == 0
    return given.size == 0 or np.can_cast(given.dtype, wanted, "same_kind")


def _described(given: Array) -> str:
    if given.dtype.kind in "iu":
        return f"{given.min()} to {given.max()}"
    if given.dtype.kind == "U":
        return f"text{_file_hint(given)}"
    if given.dtype.kind == "S":
        return "bytes"
    return f"{given.dtype}" if given.dtype != object else "values of mixed or unknown type"


def _file_hint(given: Array) -> str:
    """Return how a file is given, where a text looks like the path of one."""
    text = str(given) if given.ndim == 0 else ""
    stem, _, suffix = text.rpartition(".")
    looks_so = text.isprintable() and ("/" in text or bool(stem and suffix.isalnum()))
    return f"; if {text!r:.100} names a file, give pathlib.Path or the open file" if looks_so else ""


def _lengths(value: Any, tensor: Tensor, rank: int) -> tuple[int, ...]:
    """Return the lengths of ``rank`` levels of nesting, which must be the same in each branch."""
    if rank == 0:
        return ()
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        raise InvalidInput(f"input {tensor.name} takes {rank} more levels of lists around {value!r:.40}")
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
        return _json(element, tensor)
    if isinstance(element, str):
        return element.encode()
    if is_gap(element):
        return bytes(null_of(tensor))
    return _picture_or_date(element, tensor)


def _picture_or_date(element: Any, tensor: Tensor) -> bytes:
    if isinstance(element, np.ndarray) and element.ndim == 0:
        return _as_bytes(element[()], tensor)
    if tensor.logical_type == "datetime":
        return date_text(element, tensor)
    if is_picture(element):
        return picture_bytes(element, tensor)
    raise InvalidInput(f"input {tensor.name} takes bytes or str, not {type(element).__name__}")


def _json(element: Any, tensor: Tensor) -> bytes:
    try:
        return orjson.dumps(element, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise InvalidInput(f"input {tensor.name}: {error}") from error
