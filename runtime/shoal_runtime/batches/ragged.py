"""Padding of output rows that differ in length along `unpad_axis`.

The padding makes it possible to stack the rows; it is cut off before clients receive the response. A row that is
shorter than its length in the response is an error, because its padding would look like computed numbers.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal_runtime.signature.spec import TensorSpec
from shoal_runtime.signature.tensors import Signature
from shoal_schema.wire.datatypes import Array


def own_lengths(spec: TensorSpec, inputs: Mapping[str, Array], signature: Signature) -> Array | None:
    """Return the length that each row of an output has in the response.

    The length is the number of real positions in the mask of the input `unpad_input`.

    Returns:
        Array of one length per row. None if the output is not cut, or the request has no mask.
    """
    source = signature.input(spec.unpad_input) if spec.unpad_input is not None else None
    mask = signature.input(source.pad_mask) if source is not None and source.pad_mask is not None else None
    if source is None or source.pad_axis is None or mask is None or mask.name not in inputs:
        return None
    # The length of a row is the number of real positions in its mask.
    array = np.moveaxis(inputs[mask.name], mask.batch_dim, 0)
    lengths: Array = (array != 0).reshape(len(array), -1).sum(1)
    return lengths


def pad_ragged(rows: Sequence[Array], spec: TensorSpec, lengths: Array) -> list[Array] | None:
    """Pad the rows of an output to one length along `unpad_axis`.

    Args:
        rows: rows without the batch dimension.
        spec: specification of the output.
        lengths: length of each row in the response.

    Returns:
        The padded rows; None if rows differ along another axis, or a row is shorter than its length in the response.
    """
    if spec.unpad_axis is None:
        return None
    # Rows come without the batch dimension.
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
