"""The protocol's datatypes as numpy knows them.

numpy has no bfloat16: a ``BF16`` array holds the 16 bits of each number as uint16. A ``BYTES`` array holds ``bytes``.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DTYPES: Final[dict[str, np.dtype[Any]]] = {
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
DATATYPES: Final = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
"""The datatype of each dtype; BF16's raw bits look like UINT16 and are told apart by the signature alone."""


def bfloat16_to_float32(bits: Array) -> Array:
    """Return the numbers whose bfloat16 bits these are."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(numbers: Array) -> Array:
    """Return the bfloat16 bits of the numbers, rounded to nearest even; NaN stays NaN."""
    bits = np.asarray(numbers, dtype=np.float32, order="C").view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    kept = np.where(np.isnan(numbers), bits | np.uint32(0x400000), rounded)
    return (kept >> 16).astype(np.uint16)
