"""Parsers for text that represents numbers or booleans, as in CSV files and file paths. Pure.

Integers are parsed exactly, regardless of the other rows.
"""

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal_schema.wire.datatypes import FIRST_ROUNDED

BOOLS: Final = {"true": True, "false": False}
NO_NUMBER: Final = "is not a number"
NO_WHOLE: Final = "is not an integer of 64 bits"
_DIGITS: Final = r"^[+-]?[0-9]+$"
_NUMBER: Final = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_IS_WHOLE: Final = re.compile(_DIGITS[1:-1], re.ASCII)
_IS_NUMBER: Final = re.compile(_NUMBER[1:-1], re.ASCII)
_LIMITLESS: Final = re.compile(r"[+-]?(?:nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
_MAX_DIGITS: Final = 4000
"""Python parses integers of at most 4,300 digits."""
_MAX_EXPONENT: Final = 400
"""Numbers with more digits before or after the point are beyond every datatype."""

Number = int | Decimal | float


def trimmed(texts: Any) -> Any:
    """Return text without surrounding spaces, null if nothing is left; offsets have 64 bits."""
    cut = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.equal(cut, pa.scalar("", cut.type)), pa.scalar(None, cut.type), cut)


def exact_number(cell: str) -> Number | None:
    """Parse text as a number; None if it is not one. NaN and infinities are floats."""
    # Decimal would also accept these, but integers compare faster.
    if _IS_WHOLE.fullmatch(cell) and len(cell) < _MAX_DIGITS:
        return int(cell)
    if _LIMITLESS.fullmatch(cell):
        return float(cell)
    try:
        return Decimal(cell) if _IS_NUMBER.fullmatch(cell) else None
    except InvalidOperation:  # an exponent of 20 digits
        return None


def exact_numbers(texts: Any) -> list[Number | None]:
    """Parse trimmed text as numbers; None for text that is not a number."""
    return [None if cell is None else exact_number(cell) for cell in texts.to_pylist()]


def near_fractions(texts: Any) -> Any:
    """Parse trimmed text as float64; None unless all cells are numbers in digits."""
    return texts.cast(pa.float64()) if _all(texts, _NUMBER) else None


def fractions(texts: Any) -> tuple[Any, dict[int, str]]:
    """Parse trimmed text as float64, rounded to nearest; return the column and errors by row.

    A number out of range is an error, and so is an integer without point or exponent that float64 would round.
    """
    bad: dict[int, str] = {}
    found = near_fractions(texts)
    if found is None or pc.any(pc.is_inf(found)).as_py():
        cells = texts.to_pylist()
        made = []
        for cell in cells:
            exact = None if cell is None else exact_number(cell)
            if exact is None or isinstance(exact, float):
                made.append(exact)
            else:
                # Digits beyond the range are an error; the word "inf" is not.
                near = float(cell)
                made.append(None if math.isinf(near) else near)
        bad = {row: NO_NUMBER for row, cell in enumerate(cells) if cell is not None and made[row] is None}
        found = pa.array(made, pa.float64())
    values = found.to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(np.abs(values) >= FIRST_ROUNDED).tolist():
        exact = exact_number(texts[row].as_py())
        if isinstance(exact, int) and exact != float(values[row]):
            bad[row] = "is not a number that float64 can represent exactly"
    if bad:
        mask = np.zeros(len(found), bool)
        mask[list(bad)] = True
        found = pc.if_else(pa.array(mask), pa.scalar(None, found.type), found)
    return found, bad


def wholes(texts: Any, kind: pa.DataType) -> tuple[Any, dict[int, str]]:
    """Parse trimmed text as integers; return the column and errors by row. ``1.0`` is accepted.

    Args:
        texts: result of `trimmed`.
        kind: int64 or uint64.
    """
    # Fast path: Arrow parses plain digits exactly.
    if _all(texts, _DIGITS):
        try:
            return texts.cast(kind), {}
        except pa.ArrowException:  # a number is too large, or has a plus sign
            pass
    cells = texts.to_pylist()
    made = [None if cell is None else whole_within(exact_number(cell), kind) for cell in cells]
    bad = {row: NO_WHOLE for row, cell in enumerate(cells) if cell is not None and made[row] is None}
    return pa.array(made, kind), bad


def whole_within(number: Number | None, kind: pa.DataType) -> int | None:
    """Return a number as an integer if a 64-bit type holds it exactly, else None."""
    least, most = range_of(kind)
    if isinstance(number, Decimal):
        # The exponent is checked first: int() of a huge one would take all memory.
        if number.adjusted() > _MAX_EXPONENT or number != number.to_integral_value():
            return None
        number = int(number)
    return number if isinstance(number, int) and least <= number <= most else None


def range_of(kind: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type."""
    signed = pa.types.is_signed_integer(kind)
    return (-(2 ** (kind.bit_width - 1)) if signed else 0), 2 ** (kind.bit_width - signed) - 1


def _all(texts: Any, pattern: str) -> bool:
    found = pc.all(pc.match_substring_regex(texts, pattern)).as_py()
    return found is None or bool(found)


def bools(texts: Any) -> tuple[Any, dict[int, str]]:
    """Parse trimmed text as booleans; return the column and errors by row."""
    lower = pc.utf8_lower(texts)
    known = pc.is_in(lower, pa.array(list(BOOLS), lower.type))
    wrong = pc.and_(pc.invert(known), pc.is_valid(lower)).to_numpy(zero_copy_only=False)
    found = pc.if_else(known, pc.equal(lower, pa.scalar("true", lower.type)), pa.scalar(None, pa.bool_()))
    return found, {int(row): "is neither true nor false" for row in np.flatnonzero(wrong)}
