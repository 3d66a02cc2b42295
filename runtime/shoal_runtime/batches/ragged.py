"""Rows of one output that differ along the axis that is cut back to each row's own length.

What is cut off again may hold anything, so such rows are padded to the longest and make one tensor. Only a row that
is at least as long as what will be left of it can be padded: a shorter one would get numbers that no model made.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal_runtime.handlers.signature import Signature
from shoal_runtime.handlers.spec import TensorSpec
from shoal_schema.wire.datatypes import Array


def own_lengths(spec: TensorSpec, inputs: Mapping[str, Array], signature: Signature) -> Array | None:
    """Return how much of each row of an output is left after the cut; None where no mask tells."""
    source = signature.input(spec.unpad_input) if spec.unpad_input is not None else None
    mask = signature.input(source.pad_mask) if source is not None and source.pad_mask is not None else None
    if source is None or source.pad_axis is None or mask is None or mask.name not in inputs:
        return None
    array = np.moveaxis(inputs[mask.name], mask.batch_dim, 0)
    lengths: Array = (array != 0).reshape(len(array), -1).sum(1)
    return lengths


def pad_ragged(rows: Sequence[Array], spec: TensorSpec, lengths: Array) -> list[Array] | None:
    """Return the rows with the same length along `unpad_axis`; None where they differ otherwise, or one is too short.

    They come without the batch dimension; ``lengths`` are what is left of each after the cut.
    """
    if spec.unpad_axis is None:
        return None
    axis = spec.unpad_axis - (spec.unpad_axis > spec.batch_dim)
    others = {(*row.shape[:axis], *row.shape[axis + 1 :]) for row in rows}
    if len(others) > 1 or any(row.shape[axis] < own for row, own in zip(rows, lengths.tolist(), strict=True)):
        return None
    longest = max(row.shape[axis] for row in rows)
    padded = []
    for row in rows:
        shape = (*row.shape[:axis], longest, *row.shape[axis + 1 :])
        whole = np.full(shape, b"" if row.dtype == object else 0, row.dtype)
        whole[(slice(None),) * axis + (slice(row.shape[axis]),)] = row
        padded.append(whole)
    return padded
