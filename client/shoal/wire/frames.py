"""Data frames as items: pandas, or anything with ``columns`` and ``to_numpy``, none of which is imported here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.errors import InvalidInput
from shoal.wire.signature import Signature, Tensor
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
    """Return the rows of a frame or of a column as items; anything else as it is.

    Columns are inputs if they are named so. Else a model's only input takes the columns together, in their order.

    Raises:
        InvalidInput: the columns are not what the model takes.
    """
    if not is_frame(items):
        return items.to_numpy() if hasattr(items, "to_numpy") else items
    if not len(items):
        return []
    names = list(items.columns)
    required = [tensor for tensor in signature.inputs if not tensor.optional] or list(signature.inputs[:1])
    if len(required) > 1 or _named(items, names, required[0], signature):
        return _by_input(items, names, signature)
    return _together(items, names, required[0], signature)


def unframed_item(item: Any, signature: Signature) -> Any:
    """Return one item as it is meant: the only row of a frame, a row of a frame as a dict of inputs.

    Raises:
        InvalidInput: the frame has several rows.
    """
    if is_frame(item) and len(signature.row_shape(signature.inputs[0])) < 2:
        if len(item) != 1:
            raise InvalidInput(f"a frame of {len(item)} rows is as many items: call predict_batch")
        return unframed(item, signature)[0:1][0]
    names = {tensor.name for tensor in signature.inputs}
    if len(names) > 1 and callable(getattr(item, "to_dict", None)) and hasattr(item, "index"):
        return item.to_dict()
    return item


def _named(frame: Any, names: Sequence[Any], only: Tensor, signature: Signature) -> bool:
    """Return whether columns are inputs, rather than the numbers of the only one."""
    if only.name not in names or set(names) - {tensor.name for tensor in signature.inputs}:
        return False
    return not (len(signature.row_shape(only)) == 1 and _is_scalar(frame[only.name].to_numpy()[0]))


def _by_input(frame: Any, names: Sequence[Any], signature: Signature) -> FrameRows:
    inputs = {tensor.name: tensor for tensor in signature.inputs}
    wrong = [str(name) for name in names if name not in inputs]
    missing = [name for name, tensor in inputs.items() if name not in names and not tensor.optional]
    if wrong or missing:
        told = f"missing: {', '.join(missing)}" if missing else f"unknown: {', '.join(wrong)}"
        raise InvalidInput(f"the frame's columns must be the inputs of {signature.name}: {', '.join(inputs)}; {told}")
    columns: dict[str, Array] = {name: frame[name].to_numpy() for name in names}
    for name, values in columns.items():  # a number counts as a row of one where the input takes such rows
        if signature.row_shape(inputs[name]) == (1,) and _is_scalar(values[0]):
            columns[name] = values[:, None]
    return FrameRows(columns)


def _together(frame: Any, names: Sequence[Any], only: Tensor, signature: Signature) -> Any:
    row_shape = signature.row_shape(only)
    if only.is_json:
        return FrameRows({str(name): frame[name].to_numpy() for name in names})
    if not row_shape and len(names) == 1:
        return frame[names[0]].to_numpy()
    if len(row_shape) != 1 or row_shape[0] not in (-1, len(names)):
        takes = "one value" if not row_shape else f"rows of shape {list(row_shape)}"
        raise InvalidInput(f"the frame has {len(names)} columns, input {only.name} takes {takes}: name the right ones")
    return frame.to_numpy()


def _can_be_cut(items: Any) -> bool:
    try:
        items[0:0]
    except (TypeError, KeyError):
        return False
    return True


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bytes) or np.ndim(value) == 0
