"""Conversion of columns to the datatypes of a model's inputs. Pure.

Text is parsed as numbers, numbers are converted to a datatype, dates become ISO 8601 text.

CSV files and file paths contain numbers and booleans as text. An integer that cannot be converted exactly is an error
of its row; other rows have no influence. A fraction is rounded to the nearest value of the datatype.
"""

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal_schema.wire.datatypes import DTYPES, FIRST_ROUNDED, Array, bfloat16_to_float32, float32_to_bfloat16

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
_FORM: Final = "%Y-%m-%dT%H:%M:%S"
_EMPTY_FRACTION: Final = r"\.0+([+-]\d\d:\d\d)?$"
_MINUTE: Final = {"s": 60, "ms": 60 * 10**3, "us": 60 * 10**6, "ns": 60 * 10**9}
_OFFSET: Final = r"([+-]\d\d)(\d\d)$"

Number = int | Decimal | float


def trimmed(texts: Any) -> Any:
    """Strip spaces around each text of a column; empty text becomes null."""
    cut = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.equal(cut, pa.scalar("", cut.type)), pa.scalar(None, cut.type), cut)


def exact_number(cell: str) -> Number | None:
    """Parse text as a number; return None for other text.

    NaN and infinities are floats.
    """
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
    """Parse text as float64 if all cells are numbers in digits, else None."""
    return texts.cast(pa.float64()) if _all(texts, _NUMBER) else None


def fractions(texts: Any) -> tuple[Any, dict[int, str]]:
    """Parse trimmed text as float64; return the column and errors by row.

    Numbers are rounded to nearest. Errors are numbers out of range, and integers without point or exponent that float64
    cannot hold exactly.
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
    """Parse trimmed text as integers; return the column and errors by row.

    ``1.0`` is accepted.

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
    """Convert a number to a 64-bit integer type.

    Returns: None if the number is not an integer or is out of range.
    """
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


def parsed(texts: Any, datatype: str) -> tuple[Any, dict[int, str]]:
    """Parse trimmed text as a datatype; return the column and errors by row."""
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
    """Convert a numpy array to a datatype; mask the values that do not fit."""
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
                # The limit itself is infinite in half precision.
                same &= np.isfinite(given) & (given < 2.0 ** (8 * found.dtype.itemsize - (found.dtype.kind == "i")))
        return found, ~same


def _lost(given: Array, found: Array) -> Array:
    """Mask numbers that overflow a float type or that float64 rounds."""
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
    """Convert decimals to integers or floats; mask the cells that do not fit."""
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


def iso_texts(times: Any) -> Any:
    """Format dates or timestamps as ISO 8601 text; a zero fraction is omitted.

    Local times whose zone offset has seconds (before about 1900) are written in UTC: ISO 8601 has no such offset.
    """
    if pa.types.is_date(times.type):
        return times.cast(pa.date32()).cast(pa.string())
    if times.type.tz is None:
        texts = pc.strftime(times, format=_FORM)
    else:
        try:
            texts = pc.replace_substring_regex(pc.strftime(times, format=f"{_FORM}%z"), _OFFSET, r"\1:\2")
            offset = pc.subtract(pc.local_timestamp(times).cast(pa.int64()), times.cast(pa.int64())).fill_null(0)
            odd = offset.to_numpy(zero_copy_only=False) % _MINUTE[times.type.unit] != 0
            if odd.any():
                texts = pc.if_else(pa.array(odd), _in_utc(times), texts)
        except pa.ArrowInvalid:  # the machine has no time zone database
            texts = _in_utc(times)
    return pc.replace_substring_regex(texts, _EMPTY_FRACTION, r"\1")


def _in_utc(times: Any) -> Any:
    naive = times.cast(pa.int64()).cast(pa.timestamp(times.type.unit))
    return pc.binary_join_element_wise(pc.strftime(naive, format=_FORM), "+00:00", "")
