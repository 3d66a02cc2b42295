"""Rows of different lengths to one tensor.

Rows are padded at the end of one axis, to the longest of the batch or to the smallest bucket that
holds it. A mask, when asked for, is 1 at real positions and 0 at padding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal_runtime.batches.sizes import next_size
from shoal_runtime.handlers.spec import Rule


def padded_length(lengths: Sequence[int], buckets: Sequence[int]) -> int:
    """Return the length that rows of these lengths are padded to.

    Raises:
        ValueError: a row is longer than the last bucket.
    """
    longest = max(lengths)
    if buckets and longest > buckets[-1]:
        raise ValueError(f"a row is {longest} long; the longest bucket is {buckets[-1]}")
    return next_size(longest, buckets)


def pad_and_stack(rows: Sequence[Tensor], rule: Rule) -> tuple[Tensor, Tensor]:
    """Stack rows that differ along one axis.

    Args:
        rows: n tensors of equal type and rank, without the batch dimension.
        rule: its `pad_axis` counts the batch dimension, so it is 1 or more.

    Returns:
        The batch, n x ..., and its mask, n x length, int64.

    Raises:
        ValueError: rows differ along another axis, or are longer than the last bucket.
    """
    axis = (rule.pad_axis or 1) - 1
    lengths = [row.shape[axis] for row in rows]
    length = padded_length(lengths, rule.pad_buckets)
    shape = list(rows[0].shape)
    shape[axis] = length
    batch = torch.full((len(rows), *shape), rule.pad_value, dtype=rows[0].dtype)
    mask = torch.zeros((len(rows), length), dtype=torch.int64)
    for index, row in enumerate(rows):
        if _without(row.shape, axis) != _without(rows[0].shape, axis):
            raise ValueError(
                f"{rule.name} has rows of shapes {list(rows[0].shape)} and {list(row.shape)},"
                f" which differ beyond axis {axis + 1}"
            )
        batch[index].narrow(axis, 0, row.shape[axis]).copy_(row)
        mask[index, : row.shape[axis]] = 1
    return batch, mask


def _without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])
