"""How several values of a row become one; a row that has none of them has no value."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_proxy.graph.values import Values, completed, filled_shape, gaps, stacked
from shoal_schema.graphs.tensors import Tensor
from shoal_schema.resource.graph import Combine
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32, float32_to_bfloat16


def combined(combine: Combine, values: Sequence[Values], tensors: Sequence[Tensor], count: int) -> Values:
    """Return one value for each of so many rows.

    Args:
        combine: how.
        values: of the same rows, in the order of preference.
        tensors: what they are.
        count: of rows.
    """
    if len(values) == 1 and combine is not Combine.STACK:
        return values[0]
    if combine is Combine.CONCAT:
        lists = [completed(each, count, tensor).swapaxes(0, 1) for each, tensor in zip(values, tensors, strict=True)]
        return Values(np.ascontiguousarray(stacked(lists, tensors[0]).swapaxes(0, 1)))
    if combine is Combine.FIRST and values[0].rows is None:
        return values[0]
    shape = _shape(values, tensors)
    arrays = np.stack([_full(each, tensors[0], shape, count) for each in values])
    if combine is Combine.STACK:
        return Values(np.moveaxis(arrays, 0, 1))
    masks = np.stack([_present(each, count) for each in values])
    some = masks.any(axis=0)
    if combine is Combine.FIRST:
        return Values(_first(arrays[:, some], masks[:, some]), None if some.all() else np.flatnonzero(some))
    there = _wide(masks, arrays) & np.stack([_within(each, shape) for each in values])[:, None]
    chosen = _reduced(combine, arrays[:, some], there[:, some], tensors[0].datatype)
    nowhere = ~there[:, some].any(axis=0) & np.ones(chosen.shape, bool)
    chosen[nowhere] = gaps(tensors[0], (int(nowhere.sum()),))
    return Values(chosen, None if some.all() else np.flatnonzero(some))


def _reduced(combine: Combine, arrays: Array, there: Array, datatype: str) -> Array:
    """Return one value for the several, as the datatype holds it."""
    if datatype == "BF16":
        return float32_to_bfloat16(_BY[combine](bfloat16_to_float32(arrays), there))
    reduced: Array = _BY[combine](arrays, there).astype(arrays.dtype)
    return reduced


def _present(values: Values, count: int) -> Array:
    mask = values.present(count)
    return np.ones(count, bool) if mask is None else mask


def _shape(values: Sequence[Values], tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return a row's shape: of lists of different lengths that of the longest."""
    shapes = [each.array.shape[1:] for each in values if len(each.array)]
    return tuple(map(max, zip(*shapes, strict=True))) if shapes else filled_shape(tensors[0])


def _within(values: Values, shape: tuple[int, ...]) -> Array:
    """Return where in a row of this shape the values' own rows lie."""
    inside = np.zeros(shape, bool)
    inside[tuple(map(slice, values.array.shape[1:]))] = True
    return inside


def _full(values: Values, tensor: Tensor, shape: tuple[int, ...], count: int) -> Array:
    """Return the values of so many rows of this shape, with gaps where there is none."""
    if values.rows is None and values.array.shape[1:] == shape:
        return values.array
    array = gaps(tensor, (count, *shape))
    if len(values.array):
        rows = slice(None) if values.rows is None else values.rows
        array[(rows, *map(slice, values.array.shape[1:]))] = values.array
    return array


def _first(arrays: Array, masks: Array) -> Array:
    """Return of each row the first that there is, whole: a shorter list ends in gaps."""
    result: Array = arrays[masks.argmax(axis=0), np.arange(arrays.shape[1])]
    return result


def _wide(masks: Array, arrays: Array) -> Array:
    """Return masks with a dimension for each of the arrays'."""
    return masks.reshape(*masks.shape, *(1 for _ in arrays.shape[2:]))


def _mean(arrays: Array, there: Array) -> Array:
    # Wider than what is summed: the sum of two numbers is not always a number of their kind, and their mean is.
    wide = np.longdouble if arrays.dtype == np.float64 else np.float64
    total = np.where(there, arrays, 0).astype(wide).sum(axis=0)
    mean: Array = total / np.maximum(there.sum(axis=0), 1)
    return mean


def _max(arrays: Array, there: Array) -> Array:
    # What is absent takes the place of the first that is there.
    first = np.take_along_axis(arrays, (there & np.ones(arrays.shape, bool)).argmax(axis=0)[None], axis=0)
    largest: Array = np.where(there, arrays, first).max(axis=0)
    return largest


def _vote(arrays: Array, there: Array) -> Array:
    there = there & np.ones(arrays.shape, bool)
    votes = np.stack([((arrays == arrays[each]) & there).sum(axis=0) for each in range(len(arrays))])
    winner = np.where(there, votes, -1).argmax(axis=0)
    elected: Array = np.take_along_axis(arrays, winner[None], axis=0)[0]
    return elected


_BY: Final[Mapping[Combine, Callable[[Array, Array], Any]]] = {
    Combine.MEAN: _mean,
    Combine.MAX: _max,
    Combine.VOTE: _vote,
}
