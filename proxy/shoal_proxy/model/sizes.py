"""How many bytes arrays hold."""

from collections.abc import Mapping

from shoal_schema.wire.datatypes import Array


def byte_size(array: Array) -> int:
    """Return the bytes that ``array`` holds, counting each ``BYTES`` element's own length."""
    if array.dtype.hasobject:
        return sum(map(len, array.ravel().tolist())) + 4 * array.size
    return array.nbytes


def byte_size_of(inputs: Mapping[str, Array]) -> int:
    """Return the bytes that all ``inputs`` hold."""
    size_bytes = 0
    for array in inputs.values():
        size_bytes += byte_size(array)
    return size_bytes
