"""Which rows are meant: an expression over columns, as Arrow computes it."""

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shoal_runtime.offline.errors import WrongSettings
from shoal_schema.expressions import (
    Among,
    Column,
    Comparison,
    Expression,
    ExpressionError,
    IsNull,
    Joined,
    Not,
    parse,
)
from shoal_schema.expressions import (
    columns_of as named_columns,
)

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_UNKNOWN: Final = pc.scalar(pa.scalar(None, pa.bool_()))


def compiled(text: str | None, schema: pa.Schema) -> pc.Expression | None:
    """Return the expression as Arrow evaluates it; None: all rows.

    Raises:
        WrongSettings: it is none, or names a column that is not there.
    """
    if text is None:
        return None
    try:
        expression = _computed(_parsed(text), schema)
        schema.empty_table().filter(expression)
    except (pa.ArrowException, OverflowError, RecursionError) as error:
        raise WrongSettings(f"--where {text!r:.200} cannot be: {error}") from None
    return expression


def columns_of(text: str | None, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression names."""
    if text is None:
        return []
    names = (column.name for column in named_columns(_parsed(text)))
    return [name for name in dict.fromkeys(names) if name in schema.names]


def _parsed(text: str) -> Expression:
    try:
        return parse(text)
    except ExpressionError as error:
        raise WrongSettings(f"--where {text!r:.200} {error}") from None


def _computed(expression: Expression, schema: pa.Schema) -> pc.Expression:
    match expression:
        case Column():
            return _field(expression, schema)
        case Comparison(column=column, operator=name, value=value):
            other = _field(value, schema) if isinstance(value, Column) else pc.scalar(value)
            return _COMPARISONS[name](_field(column, schema), other)
        case Among(column=column, values=values):
            field = _field(column, schema)
            # Null is among nothing, and not among nothing, as it equals nothing.
            return pc.if_else(field.is_valid(), field.isin(list(values)), _UNKNOWN)
        case IsNull(column=column):
            return _field(column, schema).is_null()
        case Not(part=part):
            return ~_computed(part, schema)
        case Joined(every=every, parts=parts):
            return reduce(operator.and_ if every else operator.or_, [_computed(part, schema) for part in parts])


def _field(column: Column, schema: pa.Schema) -> pc.Expression:
    if column.name not in schema.names:
        raise WrongSettings(f"--where names {column.name}, and the input has the columns {', '.join(schema.names)}")
    return pc.field(column.name)
