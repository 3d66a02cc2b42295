"""Evaluation of a condition over whole columns, to select rows.

The logic has three values: a comparison with an unknown value is unknown, and a row with an unknown result is not
selected. Numbers are compared as 64-bit floats or as integers.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from shoal_schema.fields.expressions import (
    BooleanOperation,
    Column,
    Comparison,
    Expression,
    IsNull,
    Membership,
    Negation,
)
from shoal_schema.wire.datatypes import FIRST_ROUNDED, Array, bfloat16_to_float32

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

_BELOW: Final[Mapping[str, str]] = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}
_ABOVE: Final[Mapping[str, str]] = {"<": "<", "<=": "<", ">": ">=", ">=": ">="}
"""The operator for the nearest number that a type holds, where that is below or above the literal."""


class RowTruth(NamedTuple):
    """Three-valued truth by row: masks of the true and the known rows."""

    so: Array
    known: Array


class Values1D(NamedTuple):
    """One value per row, and a mask of the rows that have a value."""

    array: Array
    known: Array


Columns = Mapping[str, Values1D]


def column(array: Array, datatype: str, known: Array) -> Values1D:
    """Return a tensor of one value per row as a column to compare."""
    flat = array.reshape(len(known))
    if datatype == "BF16":
        flat = bfloat16_to_float32(flat)
    return Values1D(flat.astype(np.float64) if flat.dtype.kind == "f" else flat, known)


def matching_rows(expression: Expression, columns: Columns) -> Array:
    """Return a mask of the rows for which the expression is true."""
    return _truth(expression, columns).so


def _truth(expression: Expression, columns: Columns) -> RowTruth:
    match expression:
        case Column(name=name):
            values, known = columns[name]
            return RowTruth(values.astype(bool) & known, known)
        case Comparison(column=of, operator=name, value=value):
            left = columns[of.name]
            if isinstance(value, Column):
                right = columns[value.name]
                both = left.known & right.known
                return RowTruth(_pairwise(left.array, name, right.array) & both, both)
            return RowTruth(_against(left.array, name, value) & left.known, left.known)
        case Membership(column=of, values=among):
            values, known = columns[of.name]
            wanted: list[Any] = [each for each in among if each is not None]
            if values.dtype.kind == "O":
                texts = {each.encode() for each in wanted}
                so = np.fromiter((each in texts for each in values.tolist()), bool, len(values))
            else:
                # A number that the column cannot hold equals none of its values.
                exact = [each for each in wanted if values.dtype.kind == "b" or _nearest(each, values.dtype) == each]
                so = np.isin(values, np.array(exact, values.dtype))
            return RowTruth(so & known, known)
        case IsNull(column=of):
            known = columns[of.name].known
            return RowTruth(~known, np.ones(len(known), bool))
        case Negation(part=part):
            so, known = _truth(part, columns)
            return RowTruth(~so & known, known)
        case BooleanOperation(every=every, parts=parts):
            return _joined([_truth(part, columns) for part in parts], every=every)


def _against(column: Array, name: str, literal: Any) -> Array:
    """Compare a column with a literal exactly, whatever the column's type."""
    if isinstance(literal, str):  # texts are compared as the bytes of the wire
        literal = literal.encode()
    elif column.dtype.kind in "iuf":
        nearest = _nearest(literal, column.dtype)
        # A literal between two numbers of the type equals none; its nearest one stands in for an order.
        if nearest != literal:
            if name in ("==", "!="):
                return np.full(len(column), name == "!=")
            name = (_BELOW if nearest < literal else _ABOVE)[name]
        literal = column.dtype.type(nearest)
    return np.asarray(_OPERATORS[name](column, literal), bool)


def _nearest(number: Any, dtype: Any) -> Any:
    """Return the number nearest to ``number`` that the datatype holds; no held number lies between the two."""
    if dtype.kind == "f":
        try:
            return float(number)
        except OverflowError:
            return math.inf if number > 0 else -math.inf
    limits = np.iinfo(dtype)
    return math.floor(min(max(number, int(limits.min)), int(limits.max)))


def _pairwise(left: Array, name: str, right: Array) -> Array:
    compare = _OPERATORS[name]
    so = np.asarray(compare(left, right), bool)
    if {left.dtype.kind, right.dtype.kind} in ({"f", "i"}, {"f", "u"}):
        # numpy converts the integers to floats, which rounds large ones of 64 bits. Where the two are then equal,
        # compare the original numbers.
        floats = left.astype(np.float64)
        rounded = np.flatnonzero((floats == right.astype(np.float64)) & (np.abs(floats) >= FIRST_ROUNDED))
        so[rounded] = compare(left[rounded].astype(object), right[rounded].astype(object))
    return so


def _joined(parts: list[RowTruth], *, every: bool) -> RowTruth:
    """Return the conjunction or disjunction of parts (Kleene logic).

    One false part decides a conjunction, one true part a disjunction.
    """
    so, decided = parts[0].so.copy(), parts[0].known.copy()
    for part in parts[1:]:
        # A part decides where it is false (and) or true (or); otherwise all must be known.
        if every:
            false = (decided & ~so) | (part.known & ~part.so)
            so = so & part.so
            decided = false | so
        else:
            false = decided & ~so & part.known & ~part.so
            so = so | part.so
            decided = false | so
    return RowTruth(so, decided)
