"""Encode and decode tensor bytes: little-endian, row-major; ``BYTES`` elements with a 4-byte length each.

numpy has no bfloat16, so ``BF16`` is float32 in Python and its upper half on the wire.
"""

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from shoal_schema.wire.datatypes import DTYPES, Array, bfloat16_to_float32, float32_to_bfloat16
from shoal_schema.wire.elements import object_array as objects_as
from shoal_schema.wire.elements import pack_elements, unpack_elements

DATATYPES = frozenset(DTYPES)


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """Return the dtype that holds ``datatype`` in Python: float32 for BF16, object for BYTES."""
    return np.dtype("<f4") if datatype == "BF16" else DTYPES[datatype]


def encode(array: Array, datatype: str) -> bytes:
    """Return the wire bytes of an array of ``numpy_dtype(datatype)``; BYTES elements are bytes."""
    if datatype == "BYTES":
        return pack_elements(array.flat)
    if datatype == "BF16":
        array = float32_to_bfloat16(array)
    return np.ascontiguousarray(array).tobytes()


def decode(data: bytes, datatype: str, shape: tuple[int, ...]) -> Array:
    """Return the array for wire bytes; BYTES elements are bytes.

    Raises:
        ValueError: the length of the bytes does not match datatype and shape.
    """
    if datatype == "BYTES":
        return object_array(unpack_elements(data), shape)
    dtype = DTYPES[datatype]
    expected_bytes = prod(shape) * dtype.itemsize
    if len(data) != expected_bytes:
        raise ValueError(f"{datatype} of shape {list(shape)} is {expected_bytes} bytes, not {len(data)}")
    # frombuffer is a read-only view; clients get a copy they may change.
    array = np.frombuffer(data, dtype).reshape(shape)
    return bfloat16_to_float32(array) if datatype == "BF16" else array.copy()


def object_array(elements: Iterable[Any], shape: tuple[int, ...]) -> Array:
    """Return an object array of ``elements`` in row-major order; numpy does not convert them.

    Raises:
        ValueError: the number of elements does not match the shape.
    """
    found = list(elements)
    if len(found) != prod(shape):
        raise ValueError(f"shape {list(shape)} holds {prod(shape)} elements, not {len(found)}")
    return objects_as(found, shape)
