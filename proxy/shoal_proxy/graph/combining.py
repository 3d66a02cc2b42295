"""Combination of several values of each row into one value."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_proxy.graph.values import SpaceValues, completed, filled_shape, gaps, stacked
from shoal_schema.graphs.tensors import Tensor
from shoal_schema.resource.graph import CombineRule
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32, float32_to_bfloat16


def combined(combine: CombineRule, values: Sequence[SpaceValues], tensors: Sequence[Tensor], count: int) -> SpaceValues:
    """Return the combined values of ``count`` rows.

    Args:
        combine: rule of the combination.
        values: values of the same rows, in order of preference.
        tensors: declarations of the values' tensors.
        count: number of rows.
    """
    if len(values) == 1 and combine is not CombineRule.STACK:
        return values[0]
    if combine is CombineRule.CONCAT:
        lists = [completed(each, count, tensor).swapaxes(0, 1) for each, tensor in zip(values, tensors, strict=True)]
        return SpaceValues(np.ascontiguousarray(stacked(lists, tensors[0]).swapaxes(0, 1)))
    if combine is CombineRule.FIRST and values[0].rows is None:
        return values[0]
    # A row of lists of different lengths is as long as the longest.
    shapes = [each.array.shape[1:] for each in values if len(each.array)]
    shape = tuple(map(max, zip(*shapes, strict=True))) if shapes else filled_shape(tensors[0])
    arrays = np.stack([_full(each, tensors[0], shape, count) for each in values])
    if combine is CombineRule.STACK:
        return SpaceValues(np.moveaxis(arrays, 0, 1))
    present = [each.present(count) for each in values]
    masks = np.stack([np.ones(count, bool) if mask is None else mask for mask in present])
    some = masks.any(axis=0)
    arrays, masks = arrays[:, some], masks[:, some]
    rows = None if some.all() else np.flatnonzero(some)
    if combine is CombineRule.FIRST:
        # The first value of each row as a whole: a shorter list ends in gaps.
        return SpaceValues(arrays[masks.argmax(axis=0), np.arange(arrays.shape[1])], rows)
    # Of each value only the positions that its own, perhaps shorter, rows have.
    inside = np.zeros((len(values), *shape), bool)
    for number, each in enumerate(values):
        place: list[Any] = [number, *map(slice, each.array.shape[1:])]
        inside[tuple(place)] = True
    there = masks.reshape(*masks.shape, *(1 for _ in shape)) & inside[:, None]
    if tensors[0].datatype == "BF16":
        chosen = float32_to_bfloat16(_BY[combine](bfloat16_to_float32(arrays), there))
    else:
        chosen = _BY[combine](arrays, there).astype(arrays.dtype)
    nowhere = ~there.any(axis=0) & np.ones(chosen.shape, bool)
    chosen[nowhere] = gaps(tensors[0], (int(nowhere.sum()),))
    return SpaceValues(chosen, rows)


def _full(values: SpaceValues, tensor: Tensor, shape: tuple[int, ...], count: int) -> Array:
    """Expand values to an array of ``count`` rows of ``shape``.

    Rows without a value are filled as `gaps` does: with NaN, empty text or 0.
    """
    if values.rows is None and values.array.shape[1:] == shape:
        return values.array
    array = gaps(tensor, (count, *shape))
    if len(values.array):
        rows = slice(None) if values.rows is None else values.rows
        array[(rows, *map(slice, values.array.shape[1:]))] = values.array
    return array


def _mean(arrays: Array, there: Array) -> Array:
    # A wider type: the sum of two numbers may overflow their type, although their mean does not.
    wide = np.longdouble if arrays.dtype == np.float64 else np.float64
    total = np.where(there, arrays, 0).astype(wide).sum(axis=0)
    mean: Array = total / np.maximum(there.sum(axis=0), 1)
    return mean


def _max(arrays: Array, there: Array) -> Array:
    # An absent value counts as the first present one.
    first = np.take_along_axis(arrays, (there & np.ones(arrays.shape, bool)).argmax(axis=0)[None], axis=0)
    largest: Array = np.where(there, arrays, first).max(axis=0)
    return largest


def _vote(arrays: Array, there: Array) -> Array:
    # The value with the most equal ones; the first of them where several have as many.
    there = there & np.ones(arrays.shape, bool)
    votes = np.stack([((arrays == arrays[each]) & there).sum(axis=0) for each in range(len(arrays))])
    winner = np.where(there, votes, -1).argmax(axis=0)
    elected: Array = np.take_along_axis(arrays, winner[None], axis=0)[0]
    return elected


_BY: Final[Mapping[CombineRule, Callable[[Array, Array], Any]]] = {
    CombineRule.MEAN: _mean,
    CombineRule.MAX: _max,
    CombineRule.VOTE: _vote,
}
