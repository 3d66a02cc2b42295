"""Arrow columns as operands of expressions, without rounding. Pure.

Dates and timestamps are compared as integers of nanoseconds. Text of CSV files and paths is compared as a number, a
truth value or text, whichever the other operand is.
"""

import math
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shoal_runtime.offline.converting import NO_NUMBER, bools, exact_numbers, near_fractions, trimmed
from shoal_runtime.offline.schemas import is_bytes, is_text, is_time
from shoal_schema.expressions.evaluation import Operand, Values, nearest
from shoal_schema.expressions.types import BYTES, INSTANT, NUMBER, TEXT, TIME, TRUTH, ColumnType, IncomparableTypes

_NANOSECONDS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NANOSECONDS: Final = 86_400 * 10**9
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):?([0-5]\d))?)?", re.ASCII
)
_COUNTED: Final = (pa.types.is_time, pa.types.is_duration)
"""Other types, which compare with columns of the same type only."""


def column_type(kind: pa.DataType, *, spelled: bool = False) -> ColumnType:
    """Return the type of a column in expressions.

    Args:
        kind: as in the result of `schemas.plain`.
        spelled: whether its cells are text that may represent numbers or booleans, as in CSV files.
    """
    sorts: tuple[str, ...] = ()
    if pa.types.is_null(kind):
        return ColumnType(str(kind), None)
    if spelled:
        sorts = NUMBER, TEXT, TRUTH
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        sorts = (NUMBER,)
    elif pa.types.is_boolean(kind):
        sorts = (TRUTH,)
    elif is_text(kind):
        sorts = (TEXT,)
    elif is_bytes(kind):
        sorts = (BYTES,)
    elif is_time(kind):
        sorts = (INSTANT if pa.types.is_timestamp(kind) and kind.tz is not None else TIME,)
    elif any(each(kind) for each in _COUNTED):
        sorts = (str(kind),)
    return ColumnType(str(kind), frozenset(sorts))


def operand(name: str, values: Any, *, spelled: bool = False) -> Operand:
    """Convert a column to an operand of an expression.

    ``values`` is a result of `schemas.plain`. ``spelled`` text may represent numbers or booleans, as in CSV files.
    """
    known = _mask(values.is_valid())
    kind = values.type
    if spelled:
        sorts: dict[str, Callable[[], Values]] = {
            NUMBER: lambda: _spelled_numbers(name, values),
            TEXT: lambda: Values(_bytes(values), known),
            TRUTH: lambda: _spelled_truths(name, values),
        }
    elif pa.types.is_null(kind):
        unknown = Values(known, known)
        sorts = {NUMBER: lambda: unknown, TEXT: lambda: Values(_bytes(values), known), TRUTH: lambda: unknown}
    elif pa.types.is_boolean(kind):
        sorts = {TRUTH: lambda: Values(_mask(values.fill_null(fill_value=False)), known)}
    elif is_text(kind) or is_bytes(kind):
        sorts = {TEXT: lambda: Values(_bytes(values), known)}
    elif pa.types.is_decimal(kind):
        sorts = {NUMBER: lambda: _exact(values.to_pylist(), known)}
    elif is_time(kind):
        sorts = {NUMBER: lambda: _instants(values, known)}
    elif column_type(kind).sorts:
        sorts = {NUMBER: lambda: Values(_numbers(values), known)}
    else:
        sorts = {}
    return Operand(known, sorts)


def instant(text: str, name: str, kind: ColumnType) -> int:
    """Parse an ISO 8601 date or time that is compared with a column; return nanoseconds since 1970.

    Raises:
        IncomparableTypes: the text is not a time, or only one of text and column has an offset.
    """
    invalid = IncomparableTypes(f"{text!r:.60} is not an ISO 8601 date or time")
    if (found := _TIME.fullmatch(text)) is None:
        raise invalid
    date, time, fraction, utc, sign, hours, minutes = found.groups()
    try:
        seconds = pa.scalar(f"{date}T{time or '00:00'}").cast(pa.timestamp("s")).value
    except pa.ArrowInvalid:
        raise invalid from None
    zoned = kind.sorts == frozenset({INSTANT})
    if bool(utc or sign) != zoned:
        remedy = "write its offset, as in '2024-05-01T00:00:00+00:00'" if zoned else "omit its offset"
        raise IncomparableTypes(f"{name} is {kind.shown}, but {text!r} is not: {remedy}")
    # An offset is subtracted: 02:00+02:00 is midnight in UTC.
    offset_s = (int(hours or 0) * 60 + int(minutes or 0)) * (-60 if sign == "-" else 60)
    return int((seconds - offset_s) * 10**9) + int((fraction or "").ljust(9, "0"))


def _mask(booleans: Any) -> Any:
    return booleans.to_numpy(zero_copy_only=False)


def _bytes(values: Any) -> Any:
    """Return text or bytes as objects, empty for null; bytes that are not UTF-8 stay."""
    return values.cast(pa.large_binary()).fill_null(b"").to_numpy(zero_copy_only=False)


def _numbers(values: Any) -> Any:
    """Convert numbers, dates or times to integers or float64; null becomes 0."""
    if pa.types.is_floating(values.type):
        values = values.cast(pa.float64())
    elif not pa.types.is_integer(values.type):
        # Arrow converts dates and times of 32 bits to integers of 32 bits only.
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return values.fill_null(0).to_numpy(zero_copy_only=False)


def _exact(numbers: list[Any], known: Any, unread: dict[int, str] | None = None) -> Values:
    """Return Python numbers as an operand."""
    near = np.array([math.nan if each is None else nearest(each) for each in numbers], np.float64)
    return Values(near, known, lambda rows: [numbers[row] for row in rows.tolist()], unread)


def _instants(values: Any, known: Any) -> Values:
    """Return dates or timestamps as nanoseconds since 1970."""
    kind = values.type
    unit = _NANOSECONDS[kind.unit] if pa.types.is_timestamp(kind) else _DAY_NANOSECONDS
    counts = _numbers(values.cast(pa.date32()) if pa.types.is_date(kind) else values).astype(np.int64)
    if not len(counts) or max(abs(int(counts.min())), abs(int(counts.max()))) < 2**63 // unit:
        return Values(counts * unit, known)
    # Python's integers do not overflow.
    return _exact([count * unit for count in counts.tolist()], known)


def _spelled_numbers(name: str, values: Any) -> Values:
    texts = trimmed(values)
    # Fast path: all cells at once as float64, and exactly where they round to the other number.
    near = near_fractions(texts)
    if near is not None:
        array = near.to_numpy(zero_copy_only=False)
        return Values(array, _mask(near.is_valid()), lambda rows: exact_numbers(texts.take(pa.array(rows))))
    numbers = exact_numbers(texts)
    known = np.array([each is not None for each in numbers], bool)
    rows = np.flatnonzero(~known & _mask(texts.is_valid())).tolist()
    return _exact(numbers, known, {row: _unread(name, texts[row], NO_NUMBER) for row in rows})


def _spelled_truths(name: str, values: Any) -> Values:
    texts = trimmed(values)
    found, bad = bools(texts)
    unread = {row: _unread(name, texts[row], why) for row, why in bad.items()}
    return Values(_mask(found.fill_null(fill_value=False)), _mask(found.is_valid()), None, unread)


def _unread(name: str, text: Any, why: str) -> str:
    return f"{name} is {text.as_py()[:60]!r}, which {why} (--where)"
