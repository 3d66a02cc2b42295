"""Exact comparisons of a column with a value or another column, for all types. Pure.

A comparison with a null cell gives null. Numbers compare without rounding; times with an offset compare as instants.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from itertools import repeat
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal_runtime.offline.converting import NO_NUMBER, Number, bools, exact_numbers, near_fractions, range_of, trimmed
from shoal_runtime.offline.schemas import is_bytes, is_text, is_time

Literal = str | int | float | bool
_CELLS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_ARRAYS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_NANOSECONDS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NANOSECONDS: Final = 86_400 * 10**9
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):?([0-5]\d))?)?", re.ASCII
)


class IncomparableTypes(ValueError):
    """Two types have no comparison; the message names both."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A column as the operand of a comparison."""

    name: str
    values: Any
    """As `column_types.plain` returns them."""
    spelled: bool = False
    """Whether cells are text that may spell numbers."""

    @property
    def is_number(self) -> bool:
        """Return whether the column's type is a number."""
        kind = self.values.type
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

    @property
    def is_null(self) -> bool:
        """Return whether the column's type is null."""
        return bool(pa.types.is_null(self.values.type))


def truth(cells: Cells, unread: dict[int, str]) -> Any:
    """Return a column as booleans; add text that is neither true nor false to ``unread``.

    Raises:
        IncomparableTypes: the column is not boolean or text of booleans.
    """
    if cells.is_null or pa.types.is_boolean(cells.values.type):
        return cells.values.cast(pa.bool_())
    if not cells.spelled:
        raise IncomparableTypes(f"{cells.name} is {cells.values.type}, not true or false")
    texts = trimmed(cells.values)
    found, bad = bools(texts)
    for row, why in bad.items():
        unread.setdefault(row, _unread(cells.name, texts[row], why))
    return found


def with_literal(cells: Cells, sign: str, value: Literal, unread: dict[int, str]) -> Any:
    """Compare each cell with a value; add rows with incomparable text to ``unread``.

    Raises:
        IncomparableTypes: the column's type does not compare with the value.
    """
    values = cells.values
    if cells.is_null:
        return pa.nulls(len(values), pa.bool_())
    if isinstance(value, bool):
        return _ARRAYS[sign](truth(cells, unread), pa.scalar(value))
    if isinstance(value, str):
        return _with_text(cells, sign, value)
    if cells.is_number:
        if pa.types.is_decimal(values.type):
            return _each(values.to_pylist(), sign, repeat(_as_written(value)))
        if pa.types.is_floating(values.type):
            return _by_floor(values.cast(pa.float64()), sign, *_float64_floor(value))
        return _by_floor(values, sign, *_integer_floor(value, *range_of(values.type)))
    if not cells.spelled:
        raise IncomparableTypes(f"{cells.name} is {values.type}, but {value} is a number")
    # Fast path: all cells at once as float64.
    near = near_fractions(trimmed(values))
    if near is None or abs(value) > sys.float_info.max:
        return _each(_spelled_numbers(cells, unread), sign, repeat(_as_written(value)))
    # Rounding keeps the order of two numbers, so only cells that round to the value itself are compared exactly.
    found = _ARRAYS[sign](near, pa.scalar(float(value)))
    if ties := np.flatnonzero(near.to_numpy(zero_copy_only=False) == float(value)).tolist():
        exact = _each(exact_numbers(trimmed(values.take(pa.array(ties)))), sign, repeat(_as_written(value)))
        rows = np.arange(len(found))
        rows[ties] = np.arange(len(found), len(found) + len(ties))
        found = pa.concat_arrays([found, exact]).take(pa.array(rows))
    return found


def among(cells: Cells, values: Sequence[Literal | None], unread: dict[int, str]) -> Any:
    """Return whether each cell equals one of the values; null for a null cell.

    Raises:
        IncomparableTypes: the column's type does not compare with that of a value.
    """
    if is_text(cells.values.type) and all(isinstance(each, str) for each in values):
        found = pc.is_in(cells.values, pa.array(values, cells.values.type))
        return pc.if_else(cells.values.is_valid(), found, pa.scalar(None, pa.bool_()))
    start = _constant(cells.values, result=False)
    equal = (with_literal(cells, "==", each, unread) for each in values if each is not None)
    return reduce(pc.or_kleene, equal, start)


def of_columns(one: Cells, sign: str, other: Cells, unread: dict[int, str]) -> Any:
    """Compare two columns row by row; add rows with incomparable text to ``unread``.

    Raises:
        IncomparableTypes: the columns' types do not compare.
    """
    kinds = one.values.type, other.values.type
    if one.is_null or other.is_null:
        return pa.nulls(len(one.values), pa.bool_())
    if one.spelled and other.spelled:
        # As numbers where both cells spell one, else as text.
        numbers = [
            [None if _is_nan(cell) else cell for cell in exact_numbers(trimmed(each.values))] for each in (one, other)
        ]
        return pc.coalesce(_each(numbers[0], sign, numbers[1]), _ARRAYS[sign](one.values, other.values))
    if all(each.is_number or each.spelled for each in (one, other)):
        return _of_numbers(one, sign, other, unread)
    if all(map(is_time, kinds)):
        return _of_times(one, sign, other)
    if not (kinds[0] == kinds[1] or all(map(is_text, kinds)) or all(map(is_bytes, kinds))):
        raise IncomparableTypes(f"{one.name} is {kinds[0]}, but {other.name} is {kinds[1]}")
    return _ARRAYS[sign](one.values, other.values)


def _unread(name: str, text: Any, why: str) -> str:
    return f"{name} is {text.as_py()[:60]!r}, which {why} (--where)"


def _constant(values: Any, *, result: bool) -> Any:
    return pc.if_else(values.is_valid(), pa.scalar(result), pa.scalar(None, pa.bool_()))


def _each(cells: Iterable[Any], sign: str, others: Iterable[Any]) -> Any:
    """Compare Python numbers exactly, pair by pair; NaN differs from every number."""
    compare = _CELLS[sign]
    return pa.array(
        [
            None if one is None or other is None
            else sign == "!=" if _is_nan(one) or _is_nan(other)
            else compare(one, other)
            for one, other in zip(cells, others, strict=False)
        ],
        pa.bool_(),
    )  # fmt: skip


def _is_nan(number: Number | None) -> bool:
    return isinstance(number, float) and math.isnan(number)


def _as_written(value: float) -> Number:
    """Return a float as the decimal that its literal spells."""
    return Decimal(repr(value)) if isinstance(value, float) and math.isfinite(value) else value


def _spelled_numbers(cells: Cells, unread: dict[int, str]) -> list[Number | None]:
    texts = trimmed(cells.values)
    found = exact_numbers(texts)
    for row in np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False)).tolist():
        if found[row] is None:
            unread.setdefault(row, _unread(cells.name, texts[row], NO_NUMBER))
    return found


def _integer_floor(value: float, least: int, most: int) -> tuple[int | None, bool]:
    """Return the largest integer in a range that is at most a value, and whether the two are equal."""
    if math.isinf(value):
        return (most if value > 0 else None), False
    floor = math.floor(value)
    if floor > most:
        return most, False
    return (None, False) if floor < least else (floor, floor == value)


def _float64_floor(value: float) -> tuple[float, bool]:
    """Return the largest float64 that is at most a value, and whether the two are equal."""
    try:
        near = float(value)
    except OverflowError:
        return (sys.float_info.max if value > 0 else -math.inf), False
    return (near, True) if near == value else (math.nextafter(near, -math.inf) if near > value else near, False)


def _by_floor(values: Any, sign: str, floor: float | None, exact: bool) -> Any:  # noqa: FBT001 (of a pair)
    """Compare a column with a number that its type may not hold.

    Args:
        values: the column.
        sign: comparison operator.
        floor: largest value of the column's type that is at most the number; None if there is none.
        exact: whether ``floor`` equals the number.
    """
    # The number itself is a value of the column's type.
    if exact:
        return _ARRAYS[sign](values, pa.scalar(floor, values.type))
    if floor is None or sign in ("==", "!="):
        return _constant(values, result=sign in ("!=", ">", ">="))
    return _ARRAYS["<=" if sign in ("<", "<=") else ">"](values, pa.scalar(floor, values.type))


def _of_numbers(one: Cells, sign: str, other: Cells, unread: dict[int, str]) -> Any:
    kinds = one.values.type, other.values.type
    # Arrow compares columns of one kind exactly, but for unsigned integers of 64 bits.
    for wanted, matches in ((pa.int64(), pa.types.is_integer), (pa.float64(), pa.types.is_floating)):
        if all(map(matches, kinds)) and pa.uint64() not in kinds:
            return _ARRAYS[sign](one.values.cast(wanted), other.values.cast(wanted))
    # All other pairs are compared as numbers of Python, which is slower but exact.
    sides = [_spelled_numbers(each, unread) if each.spelled else each.values.to_pylist() for each in (one, other)]
    if any(map(pa.types.is_floating, kinds)):
        # A decimal fraction equals the float64 nearest to it; whole numbers and huge ones stay exact.
        for side in sides:
            for row, cell in enumerate(side):
                if isinstance(cell, Decimal) and cell.adjusted() < 400 and cell != cell.to_integral_value():
                    side[row] = float(cell)
    return _each(sides[0], sign, sides[1])


def _with_text(cells: Cells, sign: str, value: str) -> Any:
    kind = cells.values.type
    if is_time(kind):
        instant, zoned = _instant(value)
        if zoned != _is_zoned(kind):
            remedy = "write its offset, as in '2024-05-01T00:00:00+00:00'" if _is_zoned(kind) else "omit its offset"
            raise IncomparableTypes(f"{cells.name} is {kind}, but {value!r} is not: {remedy}")
        # Text is compared in nanoseconds, the column in its own unit.
        floor, rest = divmod(instant, _unit_nanoseconds(kind))
        whole, exact = _integer_floor(floor, *range_of(pa.int64()))
        return _by_floor(_counts(cells.values), sign, whole, exact and not rest)
    if is_text(kind) or is_bytes(kind):
        return _ARRAYS[sign](cells.values, pa.scalar(value if is_text(kind) else value.encode(), kind))
    raise IncomparableTypes(f"{cells.name} is {kind}, but {value!r:.60} is text")


def _instant(text: str) -> tuple[int, bool]:
    """Parse an ISO 8601 date or time.

    Returns: Nanoseconds since 1970, and whether the text has an offset.
    """
    if (found := _TIME.fullmatch(text)) is None:
        raise IncomparableTypes(f"{text!r:.60} is not an ISO 8601 date or time")
    date, time, fraction, utc, sign, hours, minutes = found.groups()
    try:
        seconds = pa.scalar(f"{date}T{time or '00:00'}").cast(pa.timestamp("s")).value
    except pa.ArrowInvalid:
        raise IncomparableTypes(f"{text!r:.60} is not an ISO 8601 date or time") from None
    # An offset is subtracted: 02:00+02:00 is midnight in UTC.
    offset_s = (int(hours or 0) * 60 + int(minutes or 0)) * (-60 if sign == "-" else 60)
    return (seconds - offset_s) * 10**9 + int((fraction or "").ljust(9, "0")), bool(utc or sign)


def _is_zoned(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _unit_nanoseconds(kind: pa.DataType) -> int:
    return _NANOSECONDS[kind.unit] if pa.types.is_timestamp(kind) else _DAY_NANOSECONDS


def _counts(values: Any) -> Any:
    """Return dates or timestamps as integers: days or units of the type since 1970."""
    return (values.cast(pa.date32()).cast(pa.int32()) if pa.types.is_date(values.type) else values).cast(pa.int64())


def _of_times(one: Cells, sign: str, other: Cells) -> Any:
    # A local time and an instant have no common order.
    kinds = one.values.type, other.values.type
    if _is_zoned(kinds[0]) != _is_zoned(kinds[1]):
        raise IncomparableTypes(f"{one.name} is {kinds[0]}, but {other.name} is {kinds[1]}: only one has a time zone")
    units = [_unit_nanoseconds(kind) for kind in kinds]
    counts = [_counts(each.values) for each in (one, other)]
    if units[0] == units[1]:
        return _ARRAYS[sign](*counts)
    # Python's integers do not overflow when seconds become nanoseconds.
    sides = [
        [None if cell is None else cell * unit for cell in side.to_pylist()]
        for side, unit in zip(counts, units, strict=True)
    ]
    return _each(sides[0], sign, sides[1])
