"""How several values of a row become one; a row that has none of them has no value."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_proxy.graph.values import Values, completed, filled_shape, gaps
from shoal_schema.graphs.tensors import Tensor
from shoal_schema.resource.graph import Combine
from shoal_schema.wire.datatypes import Array


def combined(combine: Combine, values: Sequence[Values], tensors: Sequence[Tensor], count: int) -> Values:
    """Return one value for each of so many rows.

    Args:
        combine: how.
        values: of the same rows, in the order of preference.
        tensors: what they are.
        count: of rows.

    Raises:
        ValueError: their rows have shapes that do not fit.
    """
    if len(values) == 1 and combine is not Combine.STACK:
        return values[0]
    if combine in (Combine.CONCAT, Combine.STACK):
        return Values(_listed(combine, values, tensors, count))
    if combine is Combine.FIRST and values[0].rows is None:
        return values[0]
    shape = _shape(values, tensors)
    arrays = np.stack([_full(each, tensor, shape, count) for each, tensor in zip(values, tensors, strict=True)])
    masks = np.stack([_present(each, count) for each in values])
    some = masks.any(axis=0)
    chosen = _BY[combine](arrays[:, some], masks[:, some]).astype(arrays.dtype)
    return Values(chosen, None if some.all() else np.flatnonzero(some))


def _present(values: Values, count: int) -> Array:
    mask = values.present(count)
    return np.ones(count, bool) if mask is None else mask


def _shape(values: Sequence[Values], tensors: Sequence[Tensor]) -> tuple[int, ...]:
    shapes = {each.array.shape[1:] for each in values if len(each.array)}
    if len(shapes) > 1:
        raise ValueError(f"rows of the shapes {' and '.join(map(str, sorted(shapes)))} cannot become one")
    return next(iter(shapes), filled_shape(tensors[0]))


def _full(values: Values, tensor: Tensor, shape: tuple[int, ...], count: int) -> Array:
    if values.rows is None:
        return values.array
    array = gaps(tensor, (count, *shape))
    if len(values.rows):
        array[values.rows] = values.array
    return array


def _listed(combine: Combine, values: Sequence[Values], tensors: Sequence[Tensor], count: int) -> Array:
    pairs = zip(values, tensors, strict=True)
    if combine is Combine.STACK:
        shape = _shape(values, tensors)
        return np.stack([_full(each, tensor, shape, count) for each, tensor in pairs], axis=1)
    return np.concatenate([completed(each, count, tensor) for each, tensor in pairs], axis=1)


def _first(arrays: Array, masks: Array) -> Array:
    return _taken(arrays, masks.argmax(axis=0))


def _taken(arrays: Array, which: Array) -> Array:
    result: Array = arrays[which, np.arange(arrays.shape[1])]
    return result


def _wide(masks: Array, arrays: Array) -> Array:
    """Return masks with a dimension for each of the arrays'."""
    return masks.reshape(*masks.shape, *(1 for _ in arrays.shape[2:]))


def _mean(arrays: Array, masks: Array) -> Array:
    there = _wide(masks, arrays)
    total = np.where(there, arrays, 0).astype(np.float64).sum(axis=0)
    mean: Array = total / there.sum(axis=0)
    return mean


def _max(arrays: Array, masks: Array) -> Array:
    # What is absent takes the place of the first that is there.
    filled = np.where(_wide(masks, arrays), arrays, _first(arrays, masks))
    largest: Array = filled.max(axis=0)
    return largest


def _vote(arrays: Array, masks: Array) -> Array:
    there = _wide(masks, arrays) & np.ones(arrays.shape, bool)
    votes = np.stack([((arrays == arrays[each]) & there).sum(axis=0) for each in range(len(arrays))])
    winner = np.where(there, votes, -1).argmax(axis=0)
    elected: Array = np.take_along_axis(arrays, winner[None], axis=0)[0]
    return elected


_BY: Final[Mapping[Combine, Callable[[Array, Array], Any]]] = {
    Combine.FIRST: _first,
    Combine.MEAN: _mean,
    Combine.MAX: _max,
    Combine.VOTE: _vote,
}
