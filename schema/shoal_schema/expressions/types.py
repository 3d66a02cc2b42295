"""Type check of an expression: which columns and literals can be compared."""

from collections.abc import Callable
from typing import Final, NamedTuple

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

NUMBER: Final = "number"
TEXT: Final = "text"
BYTES: Final = "bytes"
TRUTH: Final = "truth value"
TIME: Final = "local time"
INSTANT: Final = "instant"
_LITERALS: Final = {
    bool: ("a truth value", frozenset({TRUTH})),
    int: ("a number", frozenset({NUMBER})),
    float: ("a number", frozenset({NUMBER})),
    str: ("text", frozenset({TEXT, BYTES, TIME, INSTANT})),
}
"""Type of a literal -> its name in errors, and the sorts of columns with which it is compared."""


class IncomparableTypes(ValueError):
    """Two types have no comparison; the message names both."""


class ColumnType(NamedTuple):
    """Type of a column."""

    shown: str
    """Its name in errors, such as ``int64`` or ``FP32``."""
    sorts: frozenset[str] | None
    """What its values can be compared as; None for a column without values, which compares with everything."""


def check(expression: Expression, type_of: Callable[[str], ColumnType]) -> None:
    """Check the types of all comparisons of an expression.

    Args:
        expression: the expression.
        type_of: returns the type of a column by its name, or raises an error of its own.

    Raises:
        IncomparableTypes: a column is compared with a value or a column of another type.
    """
    match expression:
        case Column(name=name):
            kind = type_of(name)
            if kind.sorts is not None and TRUTH not in kind.sorts:
                raise IncomparableTypes(f"{name} is {kind.shown}, not a truth value: compare it with a value")
        case Comparison(column=column, value=value):
            if isinstance(value, Column):
                _check_columns(column.name, type_of(column.name), value.name, type_of(value.name))
            else:
                _check_literals(column.name, type_of(column.name), [value])
        case Membership(column=column, values=values):
            _check_literals(column.name, type_of(column.name), [each for each in values if each is not None])
        case IsNull(column=column):
            type_of(column.name)  # raises if there is none
        case Negation(part=part):
            check(part, type_of)
        case BooleanOperation(parts=parts):
            for each in parts:
                check(each, type_of)


def _check_literals(name: str, kind: ColumnType, literals: list[Literal]) -> None:
    for each in literals:
        word, sorts = _LITERALS[type(each)]
        if kind.sorts is not None and not sorts & kind.sorts:
            shown = str(each).lower() if isinstance(each, bool) else f"{each!r:.60}"
            raise IncomparableTypes(f"{name} is {kind.shown}, but {shown} is {word}")


def _check_columns(name: str, kind: ColumnType, other: str, other_kind: ColumnType) -> None:
    if kind.sorts is None or other_kind.sorts is None:
        return
    if not kind.sorts & other_kind.sorts:
        zones = " (only one has a time zone)" if kind.sorts | other_kind.sorts == {TIME, INSTANT} else ""
        same = " (values of this type have no order)" if kind == other_kind else ""
        raise IncomparableTypes(f"{name} is {kind.shown}, but {other} is {other_kind.shown}{zones}{same}")
