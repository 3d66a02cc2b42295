"""Text that spells numbers, true and false: the cells of CSV files and of paths. Pure.

Numbers are exact: a whole number is never one that only lies near it, whatever stands in other rows.
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
NO_NUMBER: Final = "is no number"
NO_WHOLE: Final = "is no whole number of 64 bits"
_DIGITS: Final = r"^[+-]?[0-9]+$"
_NUMBER: Final = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_IS_WHOLE: Final = re.compile(_DIGITS[1:-1], re.ASCII)
_IS_NUMBER: Final = re.compile(_NUMBER[1:-1], re.ASCII)
_LIMITLESS: Final = re.compile(r"[+-]?(?:nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
_MOST_DIGITS: Final = 4000
"""Python makes whole numbers of no more digits than 4,300."""
_MOST_EXPONENT: Final = 400
"""Numbers of so many digits before or after the point are beyond every datatype."""

Number = int | Decimal | float


def trimmed(texts: Any) -> Any:
    """Return large text without spaces around it, null where nothing is left."""
    cut = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.equal(cut, pa.scalar("", cut.type)), pa.scalar(None, cut.type), cut)


def exact_number(cell: str) -> Number | None:
    """Return the number that a text spells, as it is written, or None: NaN and infinities are floats."""
    if _IS_WHOLE.fullmatch(cell) and len(cell) < _MOST_DIGITS:
        return int(cell)
    if _LIMITLESS.fullmatch(cell):
        return float(cell)
    try:
        return Decimal(cell) if _IS_NUMBER.fullmatch(cell) else None
    except InvalidOperation:  # an exponent of 20 digits
        return None


def exact_numbers(texts: Any) -> list[Number | None]:
    """Return the numbers that trimmed text spells, None where it spells none."""
    return [None if cell is None else exact_number(cell) for cell in texts.to_pylist()]


def near_fractions(texts: Any) -> Any:
    """Return the fractions of 64 bits nearest to what trimmed text spells, None where one is no number of digits."""
    return texts.cast(pa.float64()) if _all(texts, _NUMBER) else None


def fractions(texts: Any) -> tuple[Any, dict[int, str]]:
    """Return the fractions of 64 bits nearest to what trimmed text spells, and what is wrong with which rows.

    A number beyond their range is wrong, as is one written without point or exponent that they do not hold.
    """
    bad: dict[int, str] = {}
    found = near_fractions(texts)
    if found is None or pc.any(pc.is_inf(found)).as_py():
        cells = texts.to_pylist()
        made = [None if cell is None else _nearest(cell) for cell in cells]
        bad = {row: NO_NUMBER for row, cell in enumerate(cells) if cell is not None and made[row] is None}
        found = pa.array(made, pa.float64())
    near = found.to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(np.abs(near) >= FIRST_ROUNDED).tolist():
        exact = exact_number(texts[row].as_py())
        if isinstance(exact, int) and exact != float(near[row]):
            bad[row] = "is no number that floating point holds exactly"
    return _without(found, bad), bad


def wholes(texts: Any, kind: pa.DataType) -> tuple[Any, dict[int, str]]:
    """Return the whole numbers that trimmed text spells, ``1.0`` too, and what is wrong with which rows.

    Args:
        texts: as `trimmed` returns them.
        kind: of 64 bits, with a sign or without.
    """
    if _all(texts, _DIGITS):
        try:
            return texts.cast(kind), {}
        except pa.ArrowException:  # one is too large, or has a plus
            pass
    cells = texts.to_pylist()
    made = [None if cell is None else whole_within(exact_number(cell), kind) for cell in cells]
    bad = {row: NO_WHOLE for row, cell in enumerate(cells) if cell is not None and made[row] is None}
    return pa.array(made, kind), bad


def whole_within(number: Number | None, kind: pa.DataType) -> int | None:
    """Return a number that is whole and that a type of 64 bits holds, else None."""
    least, most = range_of(kind)
    if isinstance(number, Decimal):
        if number.adjusted() > _MOST_EXPONENT or number != number.to_integral_value():
            return None
        number = int(number)
    return number if isinstance(number, int) and least <= number <= most else None


def range_of(kind: pa.DataType) -> tuple[int, int]:
    """Return the least and the largest number of a type of whole numbers."""
    signed = pa.types.is_signed_integer(kind)
    return (-(2 ** (kind.bit_width - 1)) if signed else 0), 2 ** (kind.bit_width - signed) - 1


def _all(texts: Any, pattern: str) -> bool:
    found = pc.all(pc.match_substring_regex(texts, pattern)).as_py()
    return found is None or bool(found)


def _nearest(cell: str) -> float | None:
    exact = exact_number(cell)
    if exact is None or isinstance(exact, float):
        return exact
    near = float(cell)
    return None if math.isinf(near) else near


def _without(column: Any, bad: dict[int, str]) -> Any:
    """Return a column with nulls in some rows."""
    if not bad:
        return column
    mask = np.zeros(len(column), bool)
    mask[list(bad)] = True
    return pc.if_else(pa.array(mask), pa.scalar(None, column.type), column)


def bools(texts: Any) -> tuple[Any, dict[int, str]]:
    """Return true and false, and the rows that are neither, null there."""
    lower = pc.utf8_lower(texts)
    known = pc.is_in(lower, pa.array(list(BOOLS), lower.type))
    wrong = pc.and_(pc.invert(known), pc.is_valid(lower)).to_numpy(zero_copy_only=False)
    found = pc.if_else(known, pc.equal(lower, pa.scalar("true", lower.type)), pa.scalar(None, pa.bool_()))
    return found, {int(row): "is neither true nor false" for row in np.flatnonzero(wrong)}
