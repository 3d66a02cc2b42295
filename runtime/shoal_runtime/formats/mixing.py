"""Detection of operators that mix rows, by propagation of the batch axis.

Each function returns the `Value` of an operator's result from those of its operands. Only a model that is proven to mix
rows is rejected. If a value is unknown, warm-up tests the model instead.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from shoal_runtime.formats.row_values import (
    Combination,
    Dims,
    MixedRows,
    Operand,
    SeparateRows,
    SharedValue,
    Value,
    mixed_along_batch,
    with_batch_axis,
)


def combined(operands: Sequence[Operand], by: str, rank: int) -> Value:
    """Return whether rows stay separate in an elementwise operation.

    Dimensions are broadcast as in numpy.
    """
    values = [operand.value for operand in operands]
    if any(value is None for value in values):
        return None
    if mixed := [value for value in values if isinstance(value, MixedRows)]:
        paired = any(value.how is Combination.PAIRED for value in mixed)
        # A mask can separate the rows again.
        masked = any(_may_mask(operand, paired=paired) for operand in operands)
        return None if masked else mixed[0]
    parts = [
        (operand.value.axis + rank - operand.rank, operand.value)
        for operand in operands
        if isinstance(operand.value, SeparateRows)
    ]
    if not parts:
        return SharedValue(all(isinstance(value, SharedValue) and value.uniform for value in values))
    # Broadcasting aligns axes from the end.
    axes, merged = {axis for axis, _ in parts}, {value.merged for _, value in parts}
    plain = all(value.plain for _, value in parts)
    if len(merged) > 1:
        return None
    # Two batch axes: each row meets each other row.
    if len(axes) > 1:
        return MixedRows(by, Combination.PAIRED) if plain and merged == {False} else None
    [axis] = axes
    plain = plain and not any(_places(operand, axis - rank) for operand in operands)
    return SeparateRows(axis, plain, merged.pop())


def _may_mask(operand: Operand, *, paired: bool) -> bool:
    # Only a mask that differs along an axis can separate rows.
    value = operand.value
    if isinstance(value, SharedValue) and not value.uniform:
        return any(dim != 1 and (paired or not isinstance(dim, int)) for dim in operand.dims)
    return paired and isinstance(value, SeparateRows)


def _places(operand: Operand, axis: int) -> bool:
    """Return whether a shared operand may differ along the batch axis.

    Args:
        operand: tensor that is the same for all clients.
        axis: batch axis, negative, counted from the last dimension.
    """
    value = operand.value
    return isinstance(value, SharedValue) and not value.uniform and -axis <= operand.rank and operand.dims[axis] != 1


def reduced(operand: Operand, axes: Sequence[int] | None, by: str, *, keep: bool, largest: bool = False) -> Value:
    """Return whether rows stay separate in a reduction, such as a sum.

    Args:
        operand: tensor to reduce.
        axes: axes to reduce; None for all.
        by: name of the node, for messages.
        keep: whether the result keeps the reduced axes, with size 1.
        largest: whether the reduction is a maximum or similar. Over all axes its result is then unknown, because it may
            be a length or a scale.
    """
    value = operand.value
    every = tuple(range(operand.rank)) if axes is None else tuple(axis % max(operand.rank, 1) for axis in axes)
    if not isinstance(value, SeparateRows):
        return value
    if value.axis in every:
        return (
            None if largest and len(set(every)) == operand.rank else mixed_along_batch(operand, by, Combination.SUMMED)
        )
    return value if keep else with_batch_axis(value, value.axis - sum(axis < value.axis for axis in set(every)))


def along(operand: Operand, axes: Sequence[int], by: str, how: Combination = Combination.SUMMED) -> Value:
    """Return whether rows stay separate in an operator such as softmax.

    The operator computes along some axes and keeps the shape.
    """
    value = operand.value
    if isinstance(value, SeparateRows) and value.axis in {axis % operand.rank for axis in axes}:
        return mixed_along_batch(operand, by, how)
    return value


def transposed(operand: Operand, order: Sequence[int]) -> Value:
    """Return whether rows stay separate in a tensor with permuted axes."""
    value = operand.value
    return (
        with_batch_axis(value, [axis % operand.rank for axis in order].index(value.axis))
        if isinstance(value, SeparateRows)
        else value
    )


def squeezed(operand: Operand, axes: Sequence[int] | None) -> Value:
    """Return whether rows stay separate after removal of axes of size 1.

    If ``axes`` is None, all axes of size 1 are removed.
    """
    # Without axes, all of size 1.
    gone = {axis for axis, dim in enumerate(operand.dims) if dim == 1}
    chosen = gone if axes is None else {axis % max(operand.rank, 1) for axis in axes}
    value = operand.value
    if not isinstance(value, SeparateRows):
        return value
    return (
        None if value.axis in chosen else with_batch_axis(value, value.axis - sum(axis < value.axis for axis in chosen))
    )


def unsqueezed(operand: Operand, axes: Sequence[int]) -> Value:
    """Return whether rows stay separate after insertion of axes of size 1.

    ``axes`` are positions in the result.
    """
    rank = operand.rank + len(axes)
    new = {axis % rank for axis in axes}
    old = [axis for axis in range(rank) if axis not in new]
    return (
        with_batch_axis(operand.value, old[operand.value.axis])
        if isinstance(operand.value, SeparateRows)
        else operand.value
    )


def reshaped(operand: Operand, dims: Dims, rows: Hashable) -> Value:
    """Return whether rows stay separate in a reshaped tensor.

    They do only if the axes before the batch axis stay the same, apart from axes of size 1.

    Args:
        operand: tensor to reshape.
        dims: new shape.
        rows: symbol of the batch size.
    """
    value = operand.value
    if not isinstance(value, SeparateRows):
        return value
    before, after = _without_ones(operand.dims[: value.axis]), operand.dims[value.axis + 1 :]
    for axis, dim in enumerate(dims):
        # The batch axis keeps its position among the axes before it.
        if _without_ones(dims[:axis]) != before or dim == 1:
            continue
        kept = dim == rows or dim == operand.dims[value.axis] or _product(dims[axis + 1 :]) == _product(after)
        if dim == rows or (kept and not value.merged):
            return SeparateRows(axis, value.plain)
        # The axes after the batch axis may be partly merged into it.
        rest = dims[axis + 1 :]
        merged = value.merged and kept
        if merged or any(after[at:] == rest for at in range(1, len(after) + 1)):
            return SeparateRows(axis, value.plain, merged=True)
        return None
    return None


def _without_ones(dims: Dims) -> list[Hashable]:
    return [dim for dim in dims if dim != 1]


def _product(dims: Dims) -> Any:
    """Return the product of fixed sizes, for comparison with another product.

    If a size is not fixed, return a new object, which is not equal to any product.
    """
    total = 1
    for dim in dims:
        if not isinstance(dim, int):
            return object()
        total *= dim
    return total


def joined(operands: Sequence[Operand], axis: int, by: str, rank: int) -> Value:
    """Return whether rows stay separate in a concatenation.

    The result is None (unknown) for a concatenation along the batch axis.
    """
    value = combined(operands, by, rank)
    at = axis % rank
    if isinstance(value, MixedRows) and not any(isinstance(operand.value, MixedRows) for operand in operands):
        return None
    return None if isinstance(value, SeparateRows) and value.axis == at else value


def multiplied(left: Operand, right: Operand, by: str) -> Value:
    """Return whether rows stay separate in a product of numpy.matmul.

    The result is None (unknown) for vectors.
    """
    a, b = left.value, right.value
    if left.rank < 2 or right.rank < 2 or a is None or b is None:
        return None
    rank = max(left.rank, right.rank)
    if isinstance(a, SeparateRows) and isinstance(b, SeparateRows):
        # The batch axes, counted from the end.
        at, other_at = a.axis - left.rank, b.axis - right.rank
        plain, alike = a.plain and b.plain, a.merged == b.merged
        if at == other_at and at < -2 and alike:
            return SeparateRows(rank + at, plain, a.merged)
        if not plain or not alike:
            return None
        if at == -1 and other_at == -2:
            return MixedRows(by, Combination.SUMMED)  # the batch axes are contracted
        return None if a.merged or at == -1 or other_at == -2 else MixedRows(by, Combination.PAIRED)
    if isinstance(a, SeparateRows) and isinstance(b, SharedValue):
        return _with_weights(a, left, right, rank, contracted=-1)
    if isinstance(b, SeparateRows) and isinstance(a, SharedValue):
        return _with_weights(b, right, left, rank, contracted=-2)
    if isinstance(a, MixedRows) and isinstance(b, SeparateRows):
        # The product sums what was computed for pairs of rows.
        return MixedRows(a.by, Combination.SUMMED)
    return combined([left if isinstance(a, SharedValue) else Operand(a, ()), Operand(b, ())], by, left.rank)


def _with_weights(value: SeparateRows, operand: Operand, weights: Operand, rank: int, *, contracted: int) -> Value:
    """Return whether rows stay separate in a product with shared weights.

    Args:
        value: rows of the operand.
        operand: matrix with a batch axis.
        weights: matrix that is the same for all clients.
        rank: number of dimensions of the product.
        contracted: axis of the operand that the product sums over, negative.
    """
    axis = value.axis - operand.rank
    if axis == contracted:
        return None
    places = axis < -2 and _places(weights, axis)
    return SeparateRows(rank + axis, value.plain and not places, value.merged)


def looked_up(data: Operand, index: Operand, axis: int, by: str) -> Value:
    """Return whether rows stay separate in a lookup along one axis.

    An integer tensor selects entire slices along the axis (`Gather`, `index_select`).
    """
    axis %= max(data.rank, 1)
    d, i = data.value, index.value
    if d is None or i is None:
        return None
    if isinstance(d, MixedRows):
        # An index may restore the order of rows.
        return d if isinstance(i, SharedValue) and index.rank == 0 else None
    if isinstance(i, MixedRows):
        return (
            MixedRows(by, Combination.ORDERED)
            if i.how is Combination.ORDERED and isinstance(d, SeparateRows) and d.axis == axis
            else None
        )
    if isinstance(d, SharedValue):
        return i if isinstance(i, SharedValue) else with_batch_axis(i, axis + i.axis)
    if d.axis == axis:
        return mixed_along_batch(index, by, Combination.SELECTED)
    return with_batch_axis(d, d.axis + (index.rank - 1 if d.axis > axis else 0)) if isinstance(i, SharedValue) else None


def looked_up_beside(data: Operand, index: Operand, axis: int, by: str) -> Value:
    """Return whether rows stay separate in an elementwise lookup on one axis.

    An integer tensor selects single elements along the axis (`GatherElements`, `gather`).
    """
    axis %= max(data.rank, 1)
    d, i = data.value, index.value
    if d is None or i is None or isinstance(d, MixedRows):
        return None
    if isinstance(i, MixedRows):
        return (
            MixedRows(by, Combination.ORDERED)
            if i.how is Combination.ORDERED and isinstance(d, SeparateRows) and d.axis == axis
            else None
        )
    if isinstance(d, SeparateRows) and d.axis == axis:
        return (
            mixed_along_batch(index, by, Combination.SELECTED)
            if isinstance(i, SeparateRows) and i.axis == axis
            else None
        )
    if isinstance(d, SharedValue) and isinstance(i, SeparateRows):
        return i if i.axis == axis else replace(i, plain=i.plain and d.uniform)
    value = combined([data, index], by, data.rank)
    return value if isinstance(value, SeparateRows) and value.axis != axis else None


def scattered(data: Operand, index: Operand, updates: Operand, axis: int, by: str) -> Value:
    """Return whether rows stay separate in an elementwise write on one axis.

    An integer tensor selects the elements to overwrite (`ScatterElements`, `scatter`).
    """
    axis %= max(data.rank, 1)
    if any(operand.value is None or isinstance(operand.value, MixedRows) for operand in (data, index, updates)):
        return None
    value = combined([data, index, updates], by, data.rank)
    if isinstance(value, SeparateRows) and value.axis == axis:
        chosen = isinstance(index.value, SeparateRows) and index.value.plain
        return MixedRows(by, Combination.SELECTED) if chosen else None
    return None if isinstance(value, MixedRows) else value


def looked_up_deep(data: Operand, index: Operand, before: int, depth: int, by: str) -> Value:
    """Return whether rows stay separate in `GatherND`.

    It selects slices with index tuples.

    Args:
        data: tensor from which slices are selected.
        index: tensor whose last axis holds the index tuples.
        before: number of leading dimensions that `data` and `index` share.
        depth: length of an index tuple, which selects along as many axes after the first `before` axes.
        by: name of the node, for messages.
    """
    d, i = data.value, index.value
    if d is None or i is None or isinstance(d, MixedRows) or isinstance(i, MixedRows) or _is_list(index):
        return None
    if isinstance(d, SeparateRows):
        if before <= d.axis < before + depth:
            return mixed_along_batch(index, by, Combination.SELECTED)
        if d.axis < before:
            return d if isinstance(i, SharedValue) or i == d else None
        return with_batch_axis(d, d.axis - depth - before + index.rank - 1) if isinstance(i, SharedValue) else None
    return replace(i, plain=i.plain and (before == 0 or d.uniform)) if isinstance(i, SeparateRows) else d


def scattered_deep(data: Operand, index: Operand, updates: Operand, depth: int, by: str) -> Value:
    """Return whether and how rows stay separate after `ScatterND`.

    The operator writes at positions that are given by index tuples.

    Args:
        data: tensor to write to.
        index: tensor whose last axis holds the index tuples.
        updates: values to write.
        depth: length of an index tuple.
        by: name of the node, for messages.
    """
    if any(operand.value is None or isinstance(operand.value, MixedRows) for operand in (data, index, updates)):
        return None
    d, i, u = data.value, index.value, updates.value
    if isinstance(i, SeparateRows):
        chosen = i.plain and not _is_list(index) and not (isinstance(d, SeparateRows) and d.axis >= depth)
        return MixedRows(by, Combination.SELECTED) if chosen else None
    return SharedValue() if isinstance(d, SharedValue) and isinstance(u, SharedValue) else None


def _is_list(index: Operand) -> bool:
    """Return whether the batch axis of an index tensor is its last axis.

    The last axis holds the elements of each index tuple.
    """
    return isinstance(index.value, SeparateRows) and index.value.axis == index.rank - 1


def summed(operands: Sequence[Operand], equation: str, by: str) -> Value:
    """Return whether rows stay separate in an Einstein sum."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) != len(operands) or any(each.value is None for each in operands):
        return None
    pairs = list(zip(terms, operands, strict=True))
    if any(isinstance(operand.value, MixedRows) for operand in operands):
        return None
    apart = [
        (term[operand.value.axis], operand.value) for term, operand in pairs if isinstance(operand.value, SeparateRows)
    ]
    if not apart:
        return SharedValue()
    letters = {letter for letter, _ in apart}
    # A shared operand along a batch axis could select rows.
    lone = not any(isinstance(operand.value, SharedValue) and letters & set(term) for term, operand in pairs)
    if not lone or not all(value.plain and not value.merged for _, value in apart):
        return None
    if len(letters) > 1:
        return MixedRows(by, Combination.PAIRED)
    return SeparateRows(right.index(letters.pop())) if letters <= set(right) else MixedRows(by, Combination.SUMMED)
