"""Filter of rows: an expression over the columns of Arrow tables. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.operands import column_type, instant, operand
from shoal_runtime.offline.schemas import few, is_spelled, plain
from shoal_schema.expressions.evaluation import RowTruth, evaluate
from shoal_schema.expressions.grammar import (
    BooleanOperation,
    Comparison,
    Expression,
    ExpressionError,
    Membership,
    Negation,
    parse,
)
from shoal_schema.expressions.grammar import (
    columns_of as named_columns,
)
from shoal_schema.expressions.types import INSTANT, TIME, ColumnType, IncomparableTypes, check

_TIMES: Final = (frozenset({TIME}), frozenset({INSTANT}))


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A checked expression over the columns of a table."""

    expression: Expression

    def select(self, table: pa.Table) -> tuple[RowTruth, dict[int, str]]:
        """Evaluate the filter for each row of a table.

        Returns: Masks of the rows where the filter is true and where it is known, and errors by row of text that
        cannot be compared.
        """
        columns = {
            name: operand(name, plain(table.column(name)), spelled=is_spelled(table.schema.field(name)))
            for name in _names(self.expression)
        }
        unread: dict[int, str] = {}
        return evaluate(self.expression, columns, unread), unread


def compiled(text: str | None, schema: pa.Schema) -> RowFilter | None:
    """Parse and check a filter; None selects all rows.

    Raises:
        InvalidSettings: the text is not an expression, names an unknown column, or compares incomparable types.
    """
    if text is None:
        return None
    expression = _parsed(text)
    names = _names(expression)
    if absent := [name for name in names if name not in schema.names]:
        raise InvalidSettings(f"--where names the column {absent[0]}, but the input has {few(schema.names)}")
    none = schema.empty_table()
    types = {name: column_type(plain(none.column(name)).type, spelled=is_spelled(schema.field(name))) for name in names}
    try:
        check(expression, types.__getitem__)
        return RowFilter(_with_instants(expression, types))
    except IncomparableTypes as error:
        raise InvalidSettings(f"--where {text!r:.200} cannot be evaluated: {error}") from None


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


def _with_instants(expression: Expression, types: Mapping[str, ColumnType]) -> Expression:
    """Replace texts that are compared with dates and timestamps by nanoseconds since 1970."""
    match expression:
        case Negation(part=part):
            return Negation(_with_instants(part, types))
        case BooleanOperation(parts=parts):
            return replace(expression, parts=tuple(_with_instants(part, types) for part in parts))
        case Comparison(column=column, value=str(text)) if types[column.name].sorts in _TIMES:
            return replace(expression, value=instant(text, column.name, types[column.name]))
        case Membership(column=column, values=values) if types[column.name].sorts in _TIMES:
            kind = types[column.name]
            return replace(
                expression,
                values=tuple(instant(each, column.name, kind) if isinstance(each, str) else each for each in values),
            )
    return expression
