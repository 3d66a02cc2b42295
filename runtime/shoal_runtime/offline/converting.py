"""Columns of numbers in the datatype of a model's input, and which of them it does not hold. Pure.

Whole numbers are exact, or their rows' errors; fractions are the nearest that the datatype has.
"""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal_runtime.offline.spelled import bools, fractions, whole_within, wholes
from shoal_schema.wire.datatypes import DTYPES, FIRST_ROUNDED, Array, bfloat16_to_float32, float32_to_bfloat16


def parsed(texts: Any, datatype: str) -> tuple[Any, dict[int, str]]:
    """Return what trimmed text spells for an input of a datatype, and what is wrong with which rows, null there."""
    if datatype == "BOOL":
        return bools(texts)
    texts = _with_flags(texts)
    return wholes(texts, _wide(datatype)) if is_whole(datatype) else fractions(texts)


def _with_flags(texts: Any) -> Any:
    """Return text whose truth values, as pandas writes them, are 1 and 0: so a flag is in a column of numbers."""
    flags = pc.utf8_lower(texts)
    if not pc.any(pc.is_in(flags, pa.array(["true", "false"], texts.type))).as_py():
        return texts
    one, zero = (pa.scalar(digit, texts.type) for digit in "10")
    return pc.if_else(pc.equal(flags, "true"), one, pc.if_else(pc.equal(flags, "false"), zero, texts))


def is_whole(datatype: str) -> bool:
    """Return whether a datatype's values are whole numbers."""
    return DTYPES[datatype].kind in "iu" and datatype != "BF16"


def converted(part: Any, datatype: str) -> tuple[Array, Array]:
    """Return a flat column's values in a datatype, and which of them it does not hold. Nulls are zeros.

    Args:
        part: an array of numbers, of truth values, or of nulls alone.
        datatype: of the input.
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
    """Return numbers of numpy in a datatype, and which of them it does not hold."""
    with np.errstate(all="ignore"):
        if datatype == "BF16":
            found = float32_to_bfloat16(given.astype(np.float32))
            return found, _lost(given, bfloat16_to_float32(found))
        found = given.astype(DTYPES[datatype])
        if found.dtype.kind == "f":
            return found, _lost(given, found)
        same = found.astype(given.dtype) == given
        if found.dtype.kind in "iu":
            # What is beyond the range may come back as it was: wrapped, or cut to a limit that rounds to it.
            same &= (found < 0) == (given < 0)
            if given.dtype.kind == "f":
                same &= given < 2.0 ** (8 * found.dtype.itemsize - (found.dtype.kind == "i"))
        return found, ~same


def _lost(given: Array, found: Array) -> Array:
    """Return which numbers floating point does not hold: beyond its range, or whole ones that no 64 bits of it hold."""
    beyond: Array = np.isfinite(given) & ~np.isfinite(found)
    if given.dtype.kind in "iu" and given.dtype.itemsize == np.dtype(np.int64).itemsize:
        large = given >= FIRST_ROUNDED
        if given.dtype.kind == "i":
            large |= given <= -FIRST_ROUNDED
        for at in zip(*np.nonzero(large), strict=True):
            beyond[at] |= int(float(given[at])) != int(given[at])
    return beyond


def _decimals(part: Any, datatype: str) -> tuple[Any, Array]:
    """Return decimals as whole numbers, or as the nearest fractions, and which are no such numbers."""
    if not is_whole(datatype):
        # By way of text: Arrow's own cast is not always the nearest.
        near = part.cast(pa.string()).cast(pa.float64())
        large = np.abs(near.to_numpy(zero_copy_only=False)) >= FIRST_ROUNDED
        rows = [row for row in np.flatnonzero(large).tolist() if _is_rounded(part[row].as_py(), near[row].as_py())]
        return near, _marked(rows, len(part))
    kind = _wide(datatype)
    try:
        return part.cast(kind), _marked([], len(part))
    except pa.ArrowException:
        cells = [None if cell is None else whole_within(cell, kind) for cell in part.to_pylist()]
    found = pa.array(cells, kind)
    return found, pc.and_(found.is_null(), part.is_valid()).to_numpy(zero_copy_only=False)


def _is_rounded(cell: Decimal, near: float) -> bool:
    return cell == cell.to_integral_value() and cell != Decimal(near)


def _marked(rows: list[int], count: int) -> Array:
    found = np.zeros(count, bool)
    found[rows] = True
    return found


def _wide(datatype: str) -> pa.DataType:
    return pa.uint64() if DTYPES[datatype].kind == "u" else pa.int64()
