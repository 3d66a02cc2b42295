"""Data frames as items: pandas, Arrow, or any type with ``columns`` and ``to_numpy``; no library is imported."""

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
    matched_spelling,
    nameless,
    only_input,
    own_names,
    places_of,
)
from shoal.wire.items import column_tensor
from shoal.wire.signature import Signature, Tensor
from shoal.wire.values import column_values, without_flags
from shoal_schema.wire.datatypes import Array


class Rows:
    """Sequence of items; files among the items are read when a slice is taken."""

    def __init__(self, items: Any, plain: Callable[[Any], Any]) -> None:
        try:
            items[0:0]
        except (TypeError, KeyError):
            items = list(items)
        self._items = items
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
    """Return whether a value is a data frame, an Arrow table or a structured array: rows with named columns."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype.names) and value.ndim == 1
    kind = type(value)  # attributes of an instance may be columns
    named = hasattr(kind, "column_names") or (hasattr(kind, "columns") and hasattr(kind, "to_numpy"))
    return named and hasattr(kind, "__len__") and not issubclass(kind, tuple)


def names_of(frame: Any) -> list[Any]:
    """Return the names of a frame's columns, in order."""
    if isinstance(frame, np.ndarray):
        return list(frame.dtype.names or ())
    return list(frame.column_names if hasattr(type(frame), "column_names") else frame.columns)


def rows_of_frame(items: Any, signature: Signature) -> Any:
    """Convert a frame, a list of frames, a dict of columns or a column to items; return other values unchanged.

    Columns are matched by name, in any order. Columns named 0 to n - 1 count as unnamed: together they are the rows of
    the model's only input.

    Raises:
        InvalidInput: the columns do not match the model.
    """
    if isinstance(items, tuple) and hasattr(items, "_fields"):  # a named tuple of columns
        items = dict(zip(items._fields, items, strict=True))
    if isinstance(items, Mapping) and not any(tensor.is_json for tensor in signature.inputs):
        return _of_columns(items, signature)
    if is_frame(items):
        return _of_frame(items, signature)
    if isinstance(items, list | tuple) and any(map(is_frame, items)) and _takes_tables(signature):
        return [row for each in items for row in (_of_frame(each, signature)[:] if is_frame(each) else [each])]
    return column_values(items) if hasattr(type(items), "to_numpy") else items


def row_of_frame(item: Any, signature: Signature) -> Any:
    """Return the only row of a frame; any other item unchanged.

    Raises:
        InvalidInput: the frame does not have exactly one row.
    """
    if is_frame(item) and _takes_tables(signature):
        if len(item) != 1:
            raise InvalidInput(f"predict takes one item, not a frame of {len(item)} rows. Call predict_batch")
        return rows_of_frame(item, signature)[0:1][0]
    return item


def _takes_tables(signature: Signature) -> bool:
    """Return whether each row of a frame is one row of the model.

    False if one row of the model has two or more dimensions.
    """
    return len(signature.row_shape(signature.inputs[0])) < 2


def _of_frame(frame: Any, signature: Signature) -> Any:
    # The error for no items is the same as for an empty list.
    if not len(frame):
        return []
    given = names_of(frame)
    # Before and after respelling: 1 and "1" are different names at first.
    check_twice(given)
    names = matched_spelling(given, signature)
    check_twice(names)
    keys = dict(zip(names, given, strict=True))

    def block(parts: Sequence[Any]) -> Array | None:
        # Columns of one numeric numpy type at once: each column alone costs pandas about 20 µs.
        if not hasattr(type(frame), "dtypes"):
            return None
        found = frame[[keys[part] for part in parts]]
        kinds = set(found.dtypes)
        kind = kinds.pop() if len(kinds) == 1 else None
        return found.to_numpy() if isinstance(kind, np.dtype) and kind.kind in "iuf" else None

    return _rows(names, lambda name: column_values(frame[keys[name]]), signature, block)


def _of_columns(columns: Mapping[Any, Any], signature: Signature) -> Any:
    """Return the rows of a dict of columns of equal length; any other dict unchanged."""
    if framed := [name for name, column in columns.items() if is_frame(column) and _takes_tables(signature)]:
        raise InvalidInput(f"{framed[0]!r} is a data frame. Pass the frame itself; its columns are matched by name")
    names, values = matched_spelling(list(columns), signature), [column_values(column) for column in columns.values()]
    if not names or any(column.ndim == 0 for column in values) or len({len(column) for column in values}) > 1:
        return columns
    check_twice(names)
    arrays = dict(zip(names, values, strict=True))
    return _rows(names, arrays.__getitem__, signature) if len(values[0]) else []


def _rows(
    names: Sequence[Any],
    column: Callable[[Any], Array],
    signature: Signature,
    block: Callable[[Sequence[Any]], Array | None] = lambda parts: None,
) -> Any:
    """Return the rows of named columns as items.

    Args:
        names: the column names.
        column: returns the values of one column.
        signature: the model's signature.
        block: returns the values of several columns as one array, or None.
    """
    only, own = only_input(signature), own_names(signature)
    if only is not None and only.is_json and only.name not in names:
        return FrameRows({str(name): column(name) for name in names})
    if only is not None and own.isdisjoint(names):
        return _unnamed(names, column, only, signature)
    places = places_of(signature, names, lambda name: np.ndim(column(name)[0]) == 0)
    inputs = {tensor.name: tensor for tensor in signature.inputs}
    columns: dict[str, Array] = {}
    for name, parts in places.items():
        tensor = inputs[name]
        if parts is None:
            values = column(name)
            if isinstance(values[0], str | bytes) or np.ndim(values[0]) == 0:
                values = without_flags(values, tensor)
                # A number counts as a row of one where the input takes such rows.
                values = values[:, None] if signature.row_shape(tensor) == (1,) else values
            columns[name] = values
        elif (together := block(parts)) is None:
            named = [(part, without_flags(column(part), tensor)) for part in parts]
            columns[name] = _side_by_side(named, tensor)
        else:
            try:
                columns[name] = column_tensor(together, tensor)
            except InvalidInput:
                # Again, column by column, so that the error names the one that does not fit.
                columns[name] = _side_by_side([(part, together[:, at]) for at, part in enumerate(parts)], tensor)
    return FrameRows(columns)


def _side_by_side(columns: Sequence[tuple[Any, Array]], tensor: Tensor) -> Array:
    """Join columns of numbers to the rows of one input, with NaN for null.

    Raises:
        InvalidInput: a column does not fit; the message names it.
    """
    parts = [replace(tensor, name=str(name), shape=(-1,), columns=()) for name, _ in columns]
    return np.stack([column_tensor(values, part) for part, (_, values) in zip(parts, columns, strict=True)], axis=1)


def _unnamed(names: Sequence[Any], column: Callable[[Any], Array], only: Tensor, signature: Signature) -> Any:
    row_shape = signature.row_shape(only)
    check_order(names, signature)
    if not default_names(names):
        if only.columns or not row_shape:
            places_of(signature, names)  # raises, and lists the missing columns
        raise InvalidInput(nameless(signature, listed(names), "the values alone (`frame.to_numpy()`)"))
    if not row_shape and len(names) == 1:
        return column(names[0])
    if len(row_shape) != 1 or row_shape[0] not in (-1, len(names)):
        takes = "one value" if not row_shape else f"rows of shape {list(row_shape)}"
        raise InvalidInput(f"input {only.name} takes {takes}, but the frame has {len(names)} columns")
    return _side_by_side([(name, column(name)) for name in names], only)
