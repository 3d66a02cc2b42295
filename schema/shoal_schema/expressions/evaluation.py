"""Evaluate an expression over whole columns: the rows for which it is true.

The logic has three values: a comparison with an unknown value is unknown, and so is its negation. Numbers are compared
exactly, whatever their types; texts are compared as UTF-8.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np

from shoal_schema.expressions.grammar import (
    BooleanOperation,
    Column,
    Comparison,
    Expression,
    IsNull,
    Literal,
    Membership,
    Negation,
)
from shoal_schema.expressions.types import NUMBER, TEXT, TRUTH
from shoal_schema.wire.datatypes import FIRST_ROUNDED, Array, bfloat16_to_float32

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

Number = int | Decimal | float


class RowTruth(NamedTuple):
    """The value of an expression in each row: true, false or unknown.

    ``so`` is True where the value is true; ``known`` is False where it is unknown. Unknown rows are False in ``so``.
    """

    so: Array
    known: Array


class Values(NamedTuple):
    """A column read as numbers, as texts or as truth values."""

    array: Array
    """Booleans, integers, float64, or ``bytes`` objects; anything where unknown, but NaN if ``exact`` is given."""
    known: Array
    exact: Callable[[Array], Sequence[Any]] | None = None
    """Returns the numbers of some rows, which ``array`` holds as the nearest float64; None if it holds them."""
    unread: Mapping[int, str] | None = None
    """Row -> why its cell is not of this sort; such a cell is unknown."""


class Operand(NamedTuple):
    """A column of a table."""

    known: Array
    """Whether each row has a value."""
    sorts: Mapping[str, Callable[[], Values]]
    """NUMBER, TEXT, TRUTH -> function that returns the column as this sort. Most columns have one sort."""


def tensor_operand(array: Array, datatype: str, known: Array) -> Operand:
    """Return a tensor with one value per row as a column."""
    flat = array.reshape(len(known))
    if datatype == "BF16":
        flat = bfloat16_to_float32(flat)
    values = Values(flat.astype(np.float64) if flat.dtype.kind == "f" else flat, known)
    return Operand(known, {{"BOOL": TRUTH, "BYTES": TEXT}.get(datatype, NUMBER): lambda: values})


def evaluate(expression: Expression, columns: Mapping[str, Operand], unread: dict[int, str]) -> RowTruth:
    """Return the rows for which a checked expression is true.

    Args:
        expression: the expression; `types.check` has accepted it.
        columns: columns by name, all of the same length.
        unread: receives rows with unreadable cells, each with the reason. An example is a text that is no number, but
            is compared with one.
    """
    match expression:
        case Column(name=name):
            values = _read(columns[name], TRUTH, unread)
            return RowTruth(values.array & values.known, values.known)
        case Comparison(column=of, operator=sign, value=literal):
            if isinstance(literal, Column):
                return _of_columns(columns[of.name], sign, columns[literal.name], unread)
            values = _read(columns[of.name], _sort(literal), unread)
            return RowTruth(compared(values, sign, _as_values(literal, values)) & values.known, values.known)
        case Membership(column=of, values=literals):
            return _among(columns[of.name], [each for each in literals if each is not None], unread)
        case IsNull(column=of):
            known = columns[of.name].known
            return RowTruth(~known, np.ones(len(known), bool))
        case Negation(part=part):
            so, known = evaluate(part, columns, unread)
            return RowTruth(~so & known, known)
        case BooleanOperation(every=every, parts=parts):
            return _joined([evaluate(part, columns, unread) for part in parts], every=every)


def compared(one: Values, sign: str, other: Values) -> Array:
    """Compare two columns row by row, or a column with a single value.

    Both have the same kind of values; numbers are not rounded.
    """
    compare = _OPERATORS[sign]
    left, right = np.broadcast_arrays(one.array, other.array)
    rounds = one.exact is not None or other.exact is not None
    if not rounds and (left.dtype.kind == "f") == (right.dtype.kind == "f"):
        return np.asarray(compare(left, right), bool)
    # Rounding to the nearest float64 keeps the order of two numbers, so only pairs that round to the same one are
    # compared exactly.
    near, other_near = left.astype(np.float64), right.astype(np.float64)
    so = np.asarray(compare(near, other_near), bool)
    ties = np.flatnonzero((near == other_near) & (rounds | (np.abs(near) >= FIRST_ROUNDED)))
    if len(ties):
        numbers = (each.exact(ties) if each.exact else of[ties].tolist() for each, of in ((one, left), (other, right)))
        so[ties] = [compare(_beside(a, b), _beside(b, a)) for a, b in zip(*numbers, strict=True)]
    return so


def nearest(number: Number) -> float:
    """Return the float64 nearest to a number."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _beside(number: Number, other: Number) -> Number:
    """Return a number in the form in which it is compared with ``other``.

    A decimal fraction beside a float64 becomes the nearest float64; other numbers are unchanged.
    """
    if isinstance(number, Decimal) and isinstance(other, float) and math.isfinite(other):
        return number if number == number.to_integral_value() else float(number)
    return number


def _read(column: Operand, sort: str, unread: dict[int, str]) -> Values:
    values = column.sorts[sort]()
    for row, why in (values.unread or {}).items():
        unread.setdefault(row, why)
    return values


def _sort(literal: Literal) -> str:
    return TRUTH if isinstance(literal, bool) else TEXT if isinstance(literal, str) else NUMBER


def _as_values(literal: Literal, column: Values) -> Values:
    """Return a literal in the form in which it is compared with a column."""
    known = np.ones(1, bool)
    if isinstance(literal, str):
        # An array of objects keeps the null characters at the end of a text.
        return Values(np.array([literal.encode()], object), known)
    array = np.array([literal])
    if column.exact is None and array.dtype != object:
        return Values(array, known)
    # A fraction is compared with decimals as it is written: 0.1 is one tenth.
    number: Number = Decimal(repr(literal)) if isinstance(literal, float) and math.isfinite(literal) else literal
    return Values(np.array([nearest(number)]), known, lambda rows: [number] * len(rows))


def _of_columns(one: Operand, sign: str, other: Operand, unread: dict[int, str]) -> RowTruth:
    known = one.known & other.known
    common = [sort for sort in (NUMBER, TEXT, TRUTH) if sort in one.sorts and sort in other.sorts]
    # One of the columns has no values at all.
    if not common:
        return RowTruth(known, known)
    if NUMBER in common and TEXT in common:
        # Texts that may spell numbers: as numbers where both cells are numbers, else as texts.
        numbers, texts = ([each.sorts[sort]() for each in (one, other)] for sort in (NUMBER, TEXT))
        both = numbers[0].known & numbers[1].known & ~np.isnan(numbers[0].array) & ~np.isnan(numbers[1].array)
        so = np.where(both, compared(numbers[0], sign, numbers[1]), compared(texts[0], sign, texts[1]))
        return RowTruth(so & known, known)
    left, right = (_read(each, common[0], unread) for each in (one, other))
    known = left.known & right.known
    return RowTruth(compared(left, sign, right) & known, known)


def _among(column: Operand, literals: Sequence[Literal], unread: dict[int, str]) -> RowTruth:
    parts = [RowTruth(np.zeros(len(column.known), bool), column.known)]
    for sort in dict.fromkeys(map(_sort, literals)):
        values = _read(column, sort, unread)
        wanted = [each for each in literals if _sort(each) == sort]
        if sort == TEXT:
            texts = {each.encode() for each in wanted if isinstance(each, str)}
            so = np.fromiter((each in texts for each in values.array.tolist()), bool, len(values.known))
        else:
            so = np.logical_or.reduce([compared(values, "==", _as_values(each, values)) for each in wanted])
        parts.append(RowTruth(so & values.known, values.known))
    return _joined(parts, every=False)


def _joined(parts: Sequence[RowTruth], *, every: bool) -> RowTruth:
    """Return the conjunction or disjunction of expressions in each row.

    Unknown values follow Kleene's logic: even if other parts are unknown, one false part makes a conjunction false, and
    one true part makes a disjunction true.

    Args:
        parts: the values of the parts.
        every: conjunction (True) or disjunction (False).
    """
    true, false = ([each.so for each in parts], [each.known & ~each.so for each in parts])
    if every:
        so = np.logical_and.reduce(true)
        return RowTruth(so, so | np.logical_or.reduce(false))
    so = np.logical_or.reduce(true)
    return RowTruth(so, so | np.logical_and.reduce(false))
