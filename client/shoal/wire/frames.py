"""Data frames as items: pandas, or anything with ``columns`` and ``to_numpy``, none of which is imported here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.errors import InvalidInput
from shoal.wire.columns import (
    check_order,
    check_twice,
    default_names,
    listed,
    nameless,
    only_input,
    own_names,
    places_of,
    respelled,
)
from shoal.wire.items import column_tensor
from shoal.wire.signature import Signature, Tensor
from shoal.wire.values import column_values, without_flags
from shoal_schema.wire.datatypes import Array


class Rows:
    """Items that can be counted and cut, each made plain when it is cut: files are not read before they are sent."""

    def __init__(self, items: Any, plain: Callable[[Any], Any]) -> None:
        self._items = items if _can_be_cut(items) else list(items)
        self._plain = plain

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, part: slice) -> Any:
        cut = self._items[part]
        return cut if isinstance(cut, np.ndarray) else [self._plain(each) for each in cut]


class FrameRows:
    """The rows of a frame as dicts of inputs."""

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, part: slice) -> list[dict[str, Any]]:
        cut = [column[part] for column in self._columns.values()]
        return [dict(zip(self._columns, row, strict=True)) for row in zip(*cut, strict=True)]


def is_frame(value: Any) -> bool:
    """Return whether a value is a data frame, a table of Arrow or a structured array: rows, and columns with names."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype.names) and value.ndim == 1
    kind = type(value)  # attributes of a frame, or of a row, may be its columns
    named = hasattr(kind, "column_names") or (hasattr(kind, "columns") and hasattr(kind, "to_numpy"))
    return named and hasattr(kind, "__len__") and not issubclass(kind, tuple)


def names_of(frame: Any) -> list[Any]:
    """Return the names of a frame's columns, in its order."""
    if isinstance(frame, np.ndarray):
        return list(frame.dtype.names or ())
    return list(frame.column_names if hasattr(type(frame), "column_names") else frame.columns)


def unframed(items: Any, signature: Signature) -> Any:
    """Return the rows of a frame, of several, of a dict of columns or of a column as items; anything else as it is.

    Columns are matched by their names, in any order. Those called 0 to n - 1 have none: together they are the rows of
    a model's only input.

    Raises:
        InvalidInput: the columns are not what the model takes.
    """
    if isinstance(items, tuple) and hasattr(items, "_fields"):  # of columns
        items = dict(zip(items._fields, items, strict=True))
    if isinstance(items, Mapping) and not any(tensor.is_json for tensor in signature.inputs):
        return _of_columns(items, signature)
    if is_frame(items):
        return _of_frame(items, signature)
    if isinstance(items, list | tuple) and any(map(is_frame, items)) and _takes_tables(signature):
        return [row for each in items for row in (_of_frame(each, signature)[:] if is_frame(each) else [each])]
    return column_values(items) if hasattr(type(items), "to_numpy") else items


def unframed_item(item: Any, signature: Signature) -> Any:
    """Return one item as it is meant: the only row of a frame; anything else as it is.

    Raises:
        InvalidInput: the frame has several rows.
    """
    if is_frame(item) and _takes_tables(signature):
        if len(item) != 1:
            raise InvalidInput(f"a frame of {len(item)} rows is as many items: call predict_batch")
        return unframed(item, signature)[0:1][0]
    return item


def _takes_tables(signature: Signature) -> bool:
    """Return whether a frame is rows, and not one row of a model whose rows have two dimensions."""
    return len(signature.row_shape(signature.inputs[0])) < 2


def _of_frame(frame: Any, signature: Signature) -> Any:
    if not len(frame):
        return []
    given = names_of(frame)
    check_twice(given)
    names = respelled(given, signature)
    check_twice(names)
    keys = dict(zip(names, given, strict=True))
    return _rows(
        names,
        lambda name: column_values(frame[keys[name]]),
        signature,
        lambda parts: _block(frame, [keys[part] for part in parts]),
    )


def _of_columns(columns: Mapping[Any, Any], signature: Signature) -> Any:
    """Return the rows of a dict of columns of one length; any other dict as it is."""
    if framed := [name for name, column in columns.items() if is_frame(column) and _takes_tables(signature)]:
        raise InvalidInput(f"{framed[0]!r} is a data frame: give the frame itself, whose columns are matched by name")
    names, values = respelled(list(columns), signature), [column_values(column) for column in columns.values()]
    if not names or any(column.ndim == 0 for column in values) or len({len(column) for column in values}) > 1:
        return columns
    check_twice(names)
    arrays = dict(zip(names, values, strict=True))
    return _rows(names, arrays.__getitem__, signature) if len(values[0]) else []


def _no_block(names: Sequence[Any]) -> Array | None:
    return None


def _block(frame: Any, names: Sequence[Any]) -> Array | None:
    """Return columns of one numpy type of numbers at once, None of others: each alone costs pandas some 20 µs."""
    if not hasattr(type(frame), "dtypes"):
        return None
    block = frame[list(names)]
    kinds = set(block.dtypes)
    kind = kinds.pop() if len(kinds) == 1 else None
    return block.to_numpy() if isinstance(kind, np.dtype) and kind.kind in "iuf" else None


def _rows(
    names: Sequence[Any],
    column: Callable[[Any], Array],
    signature: Signature,
    block: Callable[[Sequence[Any]], Array | None] = _no_block,
) -> Any:
    """Return rows of named columns as items; ``block`` gives several columns at once where it can."""
    only, own = only_input(signature), own_names(signature)
    if only is not None and only.is_json and only.name not in names:
        return FrameRows({str(name): column(name) for name in names})
    if only is not None and own.isdisjoint(names):
        return _together(names, column, only, signature)
    places = places_of(signature, names, lambda name: np.ndim(column(name)[0]) == 0)
    inputs = {tensor.name: tensor for tensor in signature.inputs}
    columns: dict[str, Array] = {}
    for name, parts in places.items():
        if parts is None:
            columns[name] = _own(column(name), inputs[name], signature)
        else:
            together = block(parts)
            if together is None:
                named = [(part, without_flags(column(part), inputs[name])) for part in parts]
                columns[name] = _side_by_side(named, inputs[name])
            else:
                columns[name] = _whole_block(together, parts, inputs[name])
    return FrameRows(columns)


def _own(values: Array, tensor: Tensor, signature: Signature) -> Array:
    """Return an input's column; a number counts as a row of one where the input takes such rows."""
    if not _is_scalar(values[0]):
        return values
    values = without_flags(values, tensor)
    return values[:, None] if signature.row_shape(tensor) == (1,) else values


def _side_by_side(columns: Sequence[tuple[Any, Array]], tensor: Tensor) -> Array:
    """Return columns of numbers as rows of an input, nulls as NaN.

    Raises:
        InvalidInput: a column does not fit; it is named.
    """
    return np.stack([column_tensor(values, _of_column(tensor, name)) for name, values in columns], axis=1)


def _whole_block(values: Array, names: Sequence[Any], tensor: Tensor) -> Array:
    """Return columns that came together as rows of an input; one that does not fit is named."""
    try:
        return column_tensor(values, tensor)
    except InvalidInput:
        return _side_by_side([(name, values[:, at]) for at, name in enumerate(names)], tensor)


def _of_column(tensor: Tensor, name: Any) -> Tensor:
    return replace(tensor, name=str(name), shape=(-1,), columns=())


def _together(names: Sequence[Any], column: Callable[[Any], Array], only: Tensor, signature: Signature) -> Any:
    """Return columns without names as the rows of a model's only input."""
    row_shape = signature.row_shape(only)
    check_order(names, signature)
    if not default_names(names):
        if only.columns or not row_shape:
            places_of(signature, names)  # says which are missing
        raise InvalidInput(nameless(signature, listed(names), "the values alone (`frame.to_numpy()`)"))
    if not row_shape and len(names) == 1:
        return column(names[0])
    if len(row_shape) != 1 or row_shape[0] not in (-1, len(names)):
        takes = "one value" if not row_shape else f"rows of shape {list(row_shape)}"
        raise InvalidInput(f"the frame has {len(names)} columns, input {only.name} takes {takes}")
    return _side_by_side([(name, column(name)) for name in names], only)


def _can_be_cut(items: Any) -> bool:
    try:
        items[0:0]
    except (TypeError, KeyError):
        return False
    return True


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bytes) or np.ndim(value) == 0
