"""The protocol's datatypes as numpy knows them.

numpy has no bfloat16: a ``BF16`` array holds the 16 bits of each number as uint16. A ``BYTES`` array holds ``bytes``.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shoal_schema.wire.codes import CODES

Array = NDArray[Any]

DTYPES: Final[dict[str, np.dtype[Any]]] = {name: np.dtype(code) for name, code in CODES.items()}
DATATYPES: Final = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
"""The datatype of each dtype; BF16's raw bits look like UINT16 and are told apart by the signature alone."""


def first_rounded(dtype: np.dtype[Any]) -> float:
    """Return the least whole number of a floating-point dtype that may stand for another, which was rounded to it."""
    return float(2.0 ** (np.finfo(dtype).nmant + 1))


FIRST_ROUNDED: Final = first_rounded(DTYPES["FP64"])
"""Below it, each whole number is a floating-point one of 64 bits, and none has been rounded to another."""


def is_widened(given: object, declared: str) -> bool:
    """Return whether numbers of a datatype may stand for the declared one: each of them is exactly one of its own."""
    return given == "FP32" and declared == "FP64"


def bfloat16_to_float32(bits: Array) -> Array:
    """Return the numbers whose bfloat16 bits these are."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(numbers: Array) -> Array:
    """Return the bfloat16 bits of the numbers, rounded to nearest even; NaN stays NaN."""
    bits = np.asarray(numbers, dtype=np.float32, order="C").view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    kept = np.where(np.isnan(numbers), bits | np.uint32(0x400000), rounded)
    return (kept >> 16).astype(np.uint16)
