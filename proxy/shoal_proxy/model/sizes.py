"""Sizes of arrays in bytes."""

from collections.abc import Mapping
from math import prod

from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.datatypes import DTYPES, Array


def byte_size(array: Array) -> int:
    """Return the size of ``array`` in bytes; each ``BYTES`` element counts with its own length."""
    if array.dtype.hasobject:
        # On the wire each element has a length of 4 bytes before it.
        return sum(map(len, array.ravel().tolist())) + 4 * array.size
    return array.nbytes


def byte_size_of(inputs: Mapping[str, Array]) -> int:
    """Return the size of all ``inputs`` in bytes."""
    size_bytes = 0
    for array in inputs.values():
        size_bytes += byte_size(array)
    return size_bytes


def result_row_bytes(signature: ModelSignature) -> int:
    """Return the result bytes of one row, without outputs of variable size."""
    size_bytes = 0
    for output in signature.outputs.values():
        lengths = output.shape[1:]
        if min(lengths, default=1) > 0 and output.datatype != "BYTES":
            size_bytes += prod(lengths) * DTYPES[output.datatype].itemsize
    return size_bytes
