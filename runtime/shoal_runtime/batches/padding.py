"""Padding of batches to allowed sizes, and of rows of different lengths to one tensor.

Rows are padded at the end of one axis, to the longest row of the batch or to the smallest sufficient bucket. An
optional mask is 1 at real positions and 0 at padding.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from shoal_runtime.signature.spec import Rule
from shoal_runtime.tensors.library import Library, Tensor


def next_size(count: int, sizes: Sequence[int]) -> int:
    """Return the smallest allowed size for a number of rows.

    Returns:
        The first of the increasing `sizes` that is at least `count`. If all are smaller, `count` itself.
    """
    index = bisect_left(sizes, count)
    return sizes[index] if index < len(sizes) else count


def powers_of_two(limit: int) -> tuple[int, ...]:
    """Return the powers of two below a limit, and the limit.

    At most half of a batch padded to one of these sizes is padding.
    """
    sizes = [1]
    while sizes[-1] * 2 < limit:
        sizes.append(sizes[-1] * 2)
    return (*sizes, limit) if limit > 1 else (1,)


def padded_length(lengths: Sequence[int], buckets: Sequence[int]) -> int:
    """Return the length to which rows with the given lengths are padded.

    Raises:
        ValueError: a row exceeds the last bucket.
    """
    longest = max(lengths)
    if buckets and longest > buckets[-1]:
        raise ValueError(f"row length {longest} exceeds the longest bucket ({buckets[-1]})")
    return next_size(longest, buckets)


def pad_and_stack(rows: Sequence[Tensor], rule: Rule, library: Library) -> tuple[Tensor, Tensor]:
    """Pad and stack n rows of one type that differ in length along one axis.

    Args:
        rows: rows without the batch dimension.
        rule: padding rule, whose `pad_axis` counts the batch dimension.
        library: tensor library of the rows.

    Returns:
        The batch of shape [n, ...], and its int64 mask of shape [n, length].

    Raises:
        ValueError: rows differ along another axis, or exceed the last bucket.
    """
    axis = (rule.pad_axis or 1) - 1  # without the batch dimension
    lengths = [row.shape[axis] for row in rows]
    length = padded_length(lengths, rule.pad_buckets)
    shape = list(rows[0].shape)
    shape[axis] = length
    batch = library.filled_like(rows[0], (len(rows), *shape), rule.pad_value)
    mask = library.filled((len(rows), length), "INT64", 0)
    for index, row in enumerate(rows):
        if [*row.shape[:axis], *row.shape[axis + 1 :]] != [*shape[:axis], *shape[axis + 1 :]]:
            raise ValueError(
                f"rows of {rule.name} differ in more than axis {axis + 1}: {list(rows[0].shape)} and {list(row.shape)}"
            )
        # The padding stays at the end of the axis.
        batch[(index, *(slice(None),) * axis, slice(row.shape[axis]))] = row
        mask[index, : row.shape[axis]] = 1
    return batch, mask


def pad_rows(batch: Any, size: int, batch_dims: Mapping[str, int], library: Library) -> Any:
    """Pad a batch to `size` rows by repeating its first row.

    Repeated rows are valid input for any model, unlike zeros. A list is returned unchanged.

    Args:
        batch: argument of `forward`.
        size: number of rows to pad to.
        batch_dims: batch dimension by tensor name, where it is not 0.
        library: tensor library of the batch.
    """

    def pad(tensor: Tensor, dim: int) -> Tensor:
        # An empty tensor has no row to repeat.
        missing = size - tensor.shape[dim] if tensor.shape[dim] else 0
        return library.repeat_first(tensor, dim, missing) if missing > 0 else tensor

    if library.is_tensor(batch):
        return pad(batch, 0)
    if isinstance(batch, dict) and all(library.is_tensor(value) for value in batch.values()):
        return {name: pad(tensor, batch_dims.get(name, 0)) for name, tensor in batch.items()}
    return batch


def count_rows(batch: Any, batch_dims: Mapping[str, int]) -> int:
    """Return the number of rows in a batch, the argument of `forward`."""
    if isinstance(batch, dict):
        name, value = next(iter(batch.items()))
        return int(value.shape[batch_dims.get(name, 0)]) if hasattr(value, "shape") else len(value)
    return int(batch.shape[0]) if hasattr(batch, "shape") else len(batch)
