"""Datatypes of the protocol as numpy dtypes.

numpy has no bfloat16: a ``BF16`` array holds the 16 bits of each number as uint16. A ``BYTES`` array holds ``bytes``.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shoal_schema.wire.codes import CODES

Array = NDArray[Any]

DTYPES: Final[dict[str, np.dtype[Any]]] = {name: np.dtype(code) for name, code in CODES.items()}
DATATYPES: Final = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
"""dtype -> datatype. Only the signature distinguishes BF16 from UINT16."""


def first_rounded(dtype: np.dtype[Any]) -> float:
    """Return the smallest integer to which a floating-point dtype rounds another integer."""
    return float(2.0 ** (np.finfo(dtype).nmant + 1))


FIRST_ROUNDED: Final = first_rounded(DTYPES["FP64"])
"""Below it every integer has an exact 64-bit floating-point value."""


def is_widened(given: object, declared: str) -> bool:
    """Return whether ``given`` converts exactly to the declared datatype, as FP32 does to FP64."""
    return given == "FP32" and declared == "FP64"


def bfloat16_to_float32(bits: Array) -> Array:
    """Convert bfloat16 bits to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(numbers: Array) -> Array:
    """Convert numbers to bfloat16 bits, rounded to nearest even; NaN stays NaN."""
    bits = np.asarray(numbers, dtype=np.float32, order="C").view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    # Rounding could turn a NaN into infinity: set its quiet bit instead.
    kept = np.where(np.isnan(numbers), bits | np.uint32(0x400000), rounded)
    return (kept >> 16).astype(np.uint16)
