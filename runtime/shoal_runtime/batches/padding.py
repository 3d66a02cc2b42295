"""Batches padded to fewer forms: more rows, and rows of different lengths to one tensor.

Rows are padded at the end of one axis, to the longest of the batch or to the smallest bucket that
holds it. A mask, when asked for, is 1 at real positions and 0 at padding.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from shoal_runtime.handlers.spec import Rule
from shoal_runtime.tensors.library import Library, Tensor


def next_size(count: int, sizes: Sequence[int]) -> int:
    """Return the smallest of `sizes` (increasing) that holds `count`; when none does, `count`."""
    index = bisect_left(sizes, count)
    return sizes[index] if index < len(sizes) else count


def powers_of_two(limit: int) -> tuple[int, ...]:
    """Return 1, 2, 4... below `limit`, then `limit`: at most half of a padded batch is padding."""
    sizes = [1]
    while sizes[-1] * 2 < limit:
        sizes.append(sizes[-1] * 2)
    return (*sizes, limit) if limit > 1 else (1,)


def padded_length(lengths: Sequence[int], buckets: Sequence[int]) -> int:
    """Return the length that rows of these lengths are padded to.

    Raises:
        ValueError: a row is longer than the last bucket.
    """
    longest = max(lengths)
    if buckets and longest > buckets[-1]:
        raise ValueError(f"a row is {longest} long; the longest bucket is {buckets[-1]}")
    return next_size(longest, buckets)


def pad_and_stack(rows: Sequence[Tensor], rule: Rule, library: Library) -> tuple[Tensor, Tensor]:
    """Stack n rows of one type, without the batch dimension, that differ along one axis.

    Returns:
        The batch, n x ..., and its mask, n x length, int64.

    Raises:
        ValueError: rows differ along another axis, or are longer than the last bucket.
    """
    axis = (rule.pad_axis or 1) - 1  # which counts the batch dimension
    lengths = [row.shape[axis] for row in rows]
    length = padded_length(lengths, rule.pad_buckets)
    shape = list(rows[0].shape)
    shape[axis] = length
    batch = library.filled_like(rows[0], (len(rows), *shape), rule.pad_value)
    mask = library.filled((len(rows), length), "INT64", 0)
    for index, row in enumerate(rows):
        if [*row.shape[:axis], *row.shape[axis + 1 :]] != [*shape[:axis], *shape[axis + 1 :]]:
            raise ValueError(
                f"{rule.name} has rows of shapes {list(rows[0].shape)} and {list(row.shape)},"
                f" which differ beyond axis {axis + 1}"
            )
        batch[(index, *(slice(None),) * axis, slice(row.shape[axis]))] = row
        mask[index, : row.shape[axis]] = 1
    return batch, mask


def pad_rows(batch: Any, size: int, batch_dims: Mapping[str, int], library: Library) -> Any:
    """Return the batch with its first row repeated until it has `size` rows, not less than it has.

    A real row is the one filling that no model chokes on. A plain list is returned as it is: its author counts rows.
    ``batch_dims`` holds the batch dimension by name, where it is not 0.
    """

    def pad(tensor: Tensor, dim: int) -> Tensor:
        missing = size - tensor.shape[dim] if tensor.shape[dim] else 0
        return library.repeat_first(tensor, dim, missing) if missing > 0 else tensor

    if library.is_tensor(batch):
        return pad(batch, 0)
    if isinstance(batch, dict) and all(library.is_tensor(value) for value in batch.values()):
        return {name: pad(tensor, batch_dims.get(name, 0)) for name, tensor in batch.items()}
    return batch


def count_rows(batch: Any, batch_dims: Mapping[str, int]) -> int:
    """Return how many rows a batch for `forward` has."""
    if isinstance(batch, dict):
        name, value = next(iter(batch.items()))
        return int(value.shape[batch_dims.get(name, 0)]) if hasattr(value, "shape") else len(value)
    return int(batch.shape[0]) if hasattr(batch, "shape") else len(batch)
