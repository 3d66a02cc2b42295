"""Which rows an expression means, computed over whole columns.

In three values: what is compared with an unknown one is unknown, and a row for which the whole is unknown is not meant.
Numbers are compared as what they are: 64-bit floats, or integers.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from shoal_schema.expressions import Among, Column, Comparison, Expression, IsNull, Joined, Not
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class Truth(NamedTuple):
    """What is so, row by row, and where that is known; never so where it is not known."""

    so: Array
    known: Array


class Values1D(NamedTuple):
    """One value a row, and which rows have one."""

    array: Array
    known: Array


Columns = Mapping[str, Values1D]


def column(array: Array, datatype: str, known: Array) -> Values1D:
    """Return a tensor with one value a row as it is compared."""
    flat = array.reshape(len(known))
    if datatype == "BF16":
        flat = bfloat16_to_float32(flat)
    return Values1D(flat.astype(np.float64) if flat.dtype.kind == "f" else flat, known)


def meant(expression: Expression, columns: Columns) -> Array:
    """Return the rows for which the expression is so, as a mask."""
    return _truth(expression, columns).so


def _truth(expression: Expression, columns: Columns) -> Truth:
    match expression:
        case Column(name=name):
            values, known = columns[name]
            return Truth(values.astype(bool) & known, known)
        case Comparison(column=of, operator=name, value=value):
            return _compared(columns[of.name], name, columns[value.name] if isinstance(value, Column) else value)
        case Among(column=of, values=values):
            return _among(columns[of.name], values)
        case IsNull(column=of):
            known = columns[of.name].known
            return Truth(~known, np.ones(len(known), bool))
        case Not(part=part):
            so, known = _truth(part, columns)
            return Truth(~so & known, known)
        case Joined(every=every, parts=parts):
            return _joined([_truth(part, columns) for part in parts], every=every)


def _compared(left: Values1D, name: str, right: Any) -> Truth:
    known = left.known
    if isinstance(right, Values1D):
        known, right = known & right.known, right.array
    elif isinstance(right, str):
        right = right.encode()
    elif left.array.dtype.kind == "f":
        right = _as_float(right)
    so = np.zeros(len(known), bool)
    so[known] = _pairwise(left.array[known], name, right[known] if isinstance(right, np.ndarray) else right)
    return Truth(so, known)


def _as_float(literal: Any) -> float:
    """Return a number as floats have it; one that is beyond them is beyond them all."""
    try:
        return float(literal)
    except OverflowError:
        return math.inf if literal > 0 else -math.inf


def _pairwise(left: Array, name: str, right: Any) -> Any:
    compare = _OPERATORS[name]
    exact = left.dtype.kind in "iu" and not isinstance(right, np.ndarray)
    # An integer compared with a literal that its own type cannot hold: as Python compares them.
    return compare(left.astype(object), right) if exact else compare(left, right)


def _among(values: Values1D, among: tuple[Any, ...]) -> Truth:
    so = np.zeros(len(values.known), bool)
    for each in among:
        if each is not None:
            so |= _compared(values, "==", each).so
    return Truth(so, values.known)


def _joined(parts: list[Truth], *, every: bool) -> Truth:
    """Kleene's and, or: what is false makes all false, what is true makes any true, whatever the unknown ones are."""
    so, decided = parts[0].so.copy(), parts[0].known.copy()
    for part in parts[1:]:
        if every:
            false = (decided & ~so) | (part.known & ~part.so)
            so = so & part.so
            decided = false | so
        else:
            false = decided & ~so & part.known & ~part.so
            so = so | part.so
            decided = false | so
    return Truth(so, decided)
