"""Tensor bytes: little-endian, row-major; ``BYTES`` elements with a 4-byte length each.

numpy has no bfloat16, so ``BF16`` is float32 in Python and its upper half on the wire.
"""

import struct
from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_WIRE: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}

DATATYPES = frozenset({*_WIRE, "BYTES"})


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """Return the dtype that holds ``datatype`` in Python: float32 for BF16, object for BYTES."""
    if datatype == "BYTES":
        return np.dtype(object)
    return np.dtype("<f4") if datatype == "BF16" else _WIRE[datatype]


def encode(array: Array, datatype: str) -> bytes:
    """Return the wire bytes of an array of ``numpy_dtype(datatype)``; BYTES elements are bytes."""
    if datatype == "BYTES":
        return b"".join(part for element in array.flat for part in (struct.pack("<I", len(element)), element))
    if datatype == "BF16":
        array = _upper_half(array)
    return np.ascontiguousarray(array).tobytes()


def decode(data: bytes, datatype: str, shape: tuple[int, ...]) -> Array:
    """Return the array behind wire bytes; BYTES elements are bytes.

    Raises:
        ValueError: the bytes are not exactly the tensor that datatype and shape announce.
    """
    if datatype == "BYTES":
        return object_array(_elements(data), shape)
    dtype = _WIRE[datatype]
    expected_bytes = prod(shape) * dtype.itemsize
    if len(data) != expected_bytes:
        raise ValueError(f"{datatype} of shape {list(shape)} is {expected_bytes} bytes, not {len(data)}")
    array = np.frombuffer(data, dtype).reshape(shape)
    return _whole_float(array) if datatype == "BF16" else array.copy()


def object_array(elements: Iterable[Any], shape: tuple[int, ...]) -> Array:
    """Return an object array of ``elements`` in row-major order; numpy never looks inside them.

    Raises:
        ValueError: there are more or fewer elements than the shape holds.
    """
    found = list(elements)
    if len(found) != prod(shape):
        raise ValueError(f"shape {list(shape)} holds {prod(shape)} elements, not {len(found)}")
    array = np.empty(len(found), dtype=object)
    for index, element in enumerate(found):
        array[index] = element
    return array.reshape(shape)


def _elements(data: bytes) -> Iterable[bytes]:
    position = 0
    while position < len(data):
        start = position + 4
        if start > len(data):
            raise ValueError("BYTES tensor ends inside an element's length")
        (length,) = struct.unpack_from("<I", data, position)
        position = start + length
        if position > len(data):
            raise ValueError("BYTES tensor ends inside an element")
        yield data[start:position]


def _upper_half(array: Array) -> Array:
    """Round float32 to the nearest bfloat16, ties to even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4")
    rounded = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    kept = np.where(np.isnan(array), bits | np.uint32(0x400000), rounded)
    return (kept >> 16).astype("<u2")


def _whole_float(array: Array) -> Array:
    return (array.astype("<u4") << 16).view("<f4")
