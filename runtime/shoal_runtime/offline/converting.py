"""Conversion of number columns to the datatype of a model's input. Pure.

An integer is converted exactly or is an error of its row. A fraction is rounded to the nearest value of the datatype.
"""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal_runtime.offline.numeric_text import bools, fractions, whole_within, wholes
from shoal_schema.wire.datatypes import DTYPES, FIRST_ROUNDED, Array, bfloat16_to_float32, float32_to_bfloat16


def parsed(texts: Any, datatype: str) -> tuple[Any, dict[int, str]]:
    """Parse trimmed text as numbers of a datatype; return the column and the errors by row."""
    if datatype == "BOOL":
        return bools(texts)
    # pandas writes flags as True and False: in a column of numbers they are 1 and 0.
    flags = pc.utf8_lower(texts)
    if pc.any(pc.is_in(flags, pa.array(["true", "false"], texts.type))).as_py():
        one, zero = (pa.scalar(digit, texts.type) for digit in "10")
        texts = pc.if_else(pc.equal(flags, "true"), one, pc.if_else(pc.equal(flags, "false"), zero, texts))
    return wholes(texts, _integer64(datatype)) if is_whole(datatype) else fractions(texts)


def is_whole(datatype: str) -> bool:
    """Return whether a datatype is an integer type."""
    return DTYPES[datatype].kind in "iu" and datatype != "BF16"


def converted(part: Any, datatype: str) -> tuple[Array, Array]:
    """Convert a flat column to a datatype; nulls become zeros.

    Args:
        part: column of numbers, booleans, or only nulls.
        datatype: V2 name of the datatype, such as ``FP32``.

    Returns: The numbers, and a mask of the cells that do not fit the datatype.
    """
    lost = np.zeros(len(part), bool)
    if pa.types.is_decimal(part.type):
        part, lost = _decimals(part, datatype)
    elif pa.types.is_null(part.type):
        part = part.cast(pa.bool_() if datatype == "BOOL" else pa.float64())
    given = part.fill_null(False if pa.types.is_boolean(part.type) else 0).to_numpy(zero_copy_only=False)
    found, wrong = fitted_to(given, datatype)
    return found, wrong | lost


def fitted_to(given: Array, datatype: str) -> tuple[Array, Array]:
    """Convert a numpy array to a datatype; also return a mask of the values that do not fit."""
    with np.errstate(all="ignore"):
        if datatype == "BF16":
            found = float32_to_bfloat16(given.astype(np.float32))
            return found, _lost(given, bfloat16_to_float32(found))
        # numpy wraps and clips silently, so every value is converted back and compared.
        found = given.astype(DTYPES[datatype])
        if found.dtype.kind == "f":
            return found, _lost(given, found)
        same = found.astype(given.dtype) == given
        if found.dtype.kind in "iu":
            # A number beyond the range may convert back to itself: wrapped, or clipped to a limit that rounds to it.
            same &= (found < 0) == (given < 0)
            if given.dtype.kind == "f":
                same &= given < 2.0 ** (8 * found.dtype.itemsize - (found.dtype.kind == "i"))
        return found, ~same


def _lost(given: Array, found: Array) -> Array:
    """Return a mask of numbers that overflow a float type, or integers that float64 rounds."""
    # A finite number that becomes infinite is out of range.
    beyond: Array = np.isfinite(given) & ~np.isfinite(found)
    if given.dtype.kind in "iu" and given.dtype.itemsize == np.dtype(np.int64).itemsize:
        large = given >= FIRST_ROUNDED
        if given.dtype.kind == "i":
            large |= given <= -FIRST_ROUNDED
        # Python compares integers with floats exactly.
        for at in zip(*np.nonzero(large), strict=True):
            beyond[at] |= int(float(given[at])) != int(given[at])
    return beyond


def _decimals(part: Any, datatype: str) -> tuple[Any, Array]:
    """Convert decimals to integers or floats; also return a mask of the cells that do not fit."""
    if not is_whole(datatype):
        # Through text: Arrow's cast to float64 does not always round to nearest.
        near = part.cast(pa.string()).cast(pa.float64())
        large = np.abs(near.to_numpy(zero_copy_only=False)) >= FIRST_ROUNDED
        lost = np.zeros(len(part), bool)
        for row in np.flatnonzero(large).tolist():
            cell = part[row].as_py()
            lost[row] = cell == cell.to_integral_value() and cell != Decimal(near[row].as_py())
        return near, lost
    kind = _integer64(datatype)
    try:
        return part.cast(kind), np.zeros(len(part), bool)
    except pa.ArrowException:
        cells = [None if cell is None else whole_within(cell, kind) for cell in part.to_pylist()]
    found = pa.array(cells, kind)
    return found, pc.and_(found.is_null(), part.is_valid()).to_numpy(zero_copy_only=False)


def _integer64(datatype: str) -> pa.DataType:
    return pa.uint64() if DTYPES[datatype].kind == "u" else pa.int64()
