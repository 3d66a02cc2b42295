"""The datatypes of the Open Inference Protocol and their numpy counterparts.

``BYTES`` elements are Python ``bytes`` in object arrays. numpy has no bfloat16, so ``BF16`` travels as its raw 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
    "BYTES": np.dtype(object),
}

DATATYPES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
"""The datatype of each dtype; BF16's raw bits look like UINT16 and are told apart by the signature alone."""


def bytes_array(elements: list[bytes], shape: tuple[int, ...]) -> Array:
    """Return ``elements`` as an object array of ``shape``, without letting numpy look inside them."""
    flat = np.empty(len(elements), dtype=object)
    flat[:] = elements
    return flat.reshape(shape)


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
