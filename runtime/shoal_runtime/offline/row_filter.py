"""Filter of rows: an expression over columns, evaluated on Arrow arrays. Pure.

Text of CSV files and paths is parsed for a comparison with a number or boolean. Two such columns are compared as
numbers in rows where both cells are numbers, otherwise as text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal_runtime.offline.comparing import Cells, IncomparableTypes, among, of_columns, truth, with_literal
from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.schemas import few, is_spelled, plain
from shoal_schema.fields.expressions import (
    BooleanOperation,
    Column,
    Expression,
    ExpressionError,
    IsNull,
    Membership,
    Negation,
    parse,
)
from shoal_schema.fields.expressions import (
    columns_of as named_columns,
)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A boolean expression over the columns of a table."""

    expression: Expression

    def select(self, table: pa.Table) -> tuple[Any, dict[int, str]]:
        """Evaluate the filter for each row of a table.

        Returns: Booleans, null where the result is unknown, and errors of rows whose text cannot be compared.

        Raises:
            IncomparableTypes: the expression compares columns of incomparable types.
        """
        unread: dict[int, str] = {}
        return _evaluate(self.expression, table, unread), unread


def compiled(text: str | None, schema: pa.Schema) -> RowFilter | None:
    """Parse and check a filter; None selects all rows.

    Raises:
        InvalidSettings: the text is not an expression, names an unknown column, or compares incomparable types.
    """
    if text is None:
        return None
    where = RowFilter(_parsed(text))
    if absent := [name for name in _names(where.expression) if name not in schema.names]:
        raise InvalidSettings(f"--where names the column {absent[0]}, but the input has {few(schema.names)}")
    try:
        # On no rows: the types alone decide.
        where.select(schema.empty_table())
    except (pa.ArrowException, IncomparableTypes, RecursionError) as error:
        raise InvalidSettings(f"--where {text!r:.200} cannot be evaluated: {error}") from None
    return where


def columns_of(text: str | None, schema: pa.Schema) -> list[str]:
    """Return the columns of the input that a filter expression names."""
    # Unknown columns are an error of `compiled`.
    known = set(schema.names)
    return [] if text is None else [name for name in _names(_parsed(text)) if name in known]


def _names(expression: Expression) -> Sequence[str]:
    return list(dict.fromkeys(column.name for column in named_columns(expression)))


def _parsed(text: str) -> Expression:
    try:
        return parse(text)
    except ExpressionError as error:
        raise InvalidSettings(f"--where {text!r:.200} {error}") from None


def _evaluate(expression: Expression, table: pa.Table, unread: dict[int, str]) -> Any:
    match expression:
        case Negation(part=part):
            return pc.invert(_evaluate(part, table, unread))
        case BooleanOperation(every=every, parts=parts):
            # Kleene logic: false and null is false, true or null is true.
            return reduce(pc.and_kleene if every else pc.or_kleene, [_evaluate(each, table, unread) for each in parts])
        case IsNull(column=column):
            return _cells(column, table).values.is_null()
        case Column():
            return truth(_cells(expression, table), unread)
    cells = _cells(expression.column, table)
    if isinstance(expression, Membership):
        return among(cells, expression.values, unread)
    sign, value = expression.operator, expression.value
    if isinstance(value, Column):
        return of_columns(cells, sign, _cells(value, table), unread)
    return with_literal(cells, sign, value, unread)


def _cells(column: Column, table: pa.Table) -> Cells:
    return Cells(column.name, plain(table.column(column.name)), is_spelled(table.schema.field(column.name)))
