"""Data frames as items: pandas, or anything with ``columns`` and ``to_numpy``, none of which is imported here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.errors import InvalidInput
from shoal.wire.columns import check_twice, have_default_names, listed, places_of
from shoal.wire.items import column_tensor
from shoal.wire.signature import Signature, Tensor
from shoal.wire.values import column_values
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
    """Return whether a value is a data frame: rows, and columns with names."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def unframed(items: Any, signature: Signature) -> Any:
    """Return the rows of a frame, of a dict of columns or of a column as items; anything else as it is.

    Columns are matched by their names, in any order. Those called 0 to n - 1 have none: together they are the rows of
    a model's only input.

    Raises:
        InvalidInput: the columns are not what the model takes.
    """
    if isinstance(items, Mapping) and not any(tensor.is_json for tensor in signature.inputs):
        return _of_columns(items, signature)
    if not is_frame(items):
        return column_values(items) if hasattr(items, "to_numpy") else items
    if not len(items):
        return []
    names = list(items.columns)
    check_twice(names)
    return _rows(names, lambda name: column_values(items[name]), signature, lambda parts: _block(items, parts))


def unframed_item(item: Any, signature: Signature) -> Any:
    """Return one item as it is meant: the only row of a frame, a row of a frame as a dict of inputs.

    Raises:
        InvalidInput: the frame has several rows.
    """
    if is_frame(item) and len(signature.row_shape(signature.inputs[0])) < 2:
        if len(item) != 1:
            raise InvalidInput(f"a frame of {len(item)} rows is as many items: call predict_batch")
        return unframed(item, signature)[0:1][0]
    if not (callable(getattr(item, "to_dict", None)) and hasattr(item, "index")):
        return item
    if len(signature.inputs) == 1 and (not signature.inputs[0].columns or have_default_names(list(item.index))):
        return item
    return item.to_dict()


def _of_columns(columns: Mapping[Any, Any], signature: Signature) -> Any:
    """Return the rows of a dict of columns of one length; any other dict as it is."""
    names, values = list(columns), [column_values(column) for column in columns.values()]
    if not names or any(column.ndim == 0 for column in values) or len({len(column) for column in values}) > 1:
        return columns
    arrays = dict(zip(names, values, strict=True))
    return _rows(names, arrays.__getitem__, signature) if len(values[0]) else []


def _no_block(names: Sequence[Any]) -> Array | None:
    return None


def _block(frame: Any, names: Sequence[Any]) -> Array | None:
    """Return columns of one numpy type of numbers at once, None of others: each alone costs pandas some 20 µs."""
    if not hasattr(frame, "dtypes"):
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
    required = [tensor for tensor in signature.inputs if not tensor.optional] or list(signature.inputs[:1])
    only = required[0] if len(required) == 1 else None
    own = {name for tensor in signature.inputs for name in (tensor.name, *tensor.columns)}
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
                columns[name] = _side_by_side([(part, column(part)) for part in parts], inputs[name])
            else:
                columns[name] = _whole_block(together, parts, inputs[name])
    return FrameRows(columns)


def _own(values: Array, tensor: Tensor, signature: Signature) -> Array:
    """Return an input's column; a number counts as a row of one where the input takes such rows."""
    return values[:, None] if signature.row_shape(tensor) == (1,) and _is_scalar(values[0]) else values


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
    if not have_default_names(names):
        if only.columns or not row_shape:
            places_of(signature, names)  # says which are missing
        raise InvalidInput(
            f"model {signature.name} does not have names of columns, and the frame's have: {listed(names)}. Give"
            " its values (`frame.to_numpy()`), in the order of the columns that the model was trained with"
        )
    order = sorted(names, key=int)
    if not row_shape and len(names) == 1:
        return column(order[0])
    if len(row_shape) != 1 or row_shape[0] not in (-1, len(names)):
        takes = "one value" if not row_shape else f"rows of shape {list(row_shape)}"
        raise InvalidInput(f"the frame has {len(names)} columns, input {only.name} takes {takes}")
    return _side_by_side([(name, column(name)) for name in order], only)


def _can_be_cut(items: Any) -> bool:
    try:
        items[0:0]
    except (TypeError, KeyError):
        return False
    return True


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bytes) or np.ndim(value) == 0
