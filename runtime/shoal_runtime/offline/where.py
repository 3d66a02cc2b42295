"""Which rows are meant: an expression over columns, computed on Arrow's columns. Pure.

Text of CSV files and of paths is compared with numbers as the number that it spells, with `true` and `false` as those
words, with text as text. Of two such columns the numbers are compared where both cells spell one, else the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal_runtime.offline.comparing import Cells, Incomparable, among, of_columns, truth, with_literal
from shoal_runtime.offline.errors import WrongSettings
from shoal_runtime.offline.kinds import is_spelled, plain
from shoal_runtime.offline.schemas import few
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


@dataclass(frozen=True, slots=True)
class Where:
    """Which rows are meant.

    Args:
        expression: over the columns of a table.
    """

    expression: Expression

    def meant(self, table: pa.Table) -> tuple[Any, dict[int, str]]:
        """Return of each row whether it is meant, null where that is unknown, and rows whose text cannot be compared.

        Raises:
            Incomparable: columns are of types that do not compare.
        """
        unread: dict[int, str] = {}
        return _computed(self.expression, table, unread), unread


def compiled(text: str | None, schema: pa.Schema) -> Where | None:
    """Return the expression; None: all rows.

    Raises:
        WrongSettings: it is none, names a column that is not there, or compares what does not compare.
    """
    if text is None:
        return None
    where = Where(_parsed(text))
    if absent := [name for name in _names(where.expression) if name not in schema.names]:
        raise WrongSettings(f"--where names {absent[0]}, and the input has the columns {few(schema.names)}")
    try:
        where.meant(schema.empty_table())
    except (pa.ArrowException, Incomparable, RecursionError) as error:
        raise WrongSettings(f"--where {text!r:.200} cannot be: {error}") from None
    return where


def columns_of(text: str | None, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression names."""
    known = set(schema.names)
    return [] if text is None else [name for name in _names(_parsed(text)) if name in known]


def _names(expression: Expression) -> Sequence[str]:
    return list(dict.fromkeys(column.name for column in named_columns(expression)))


def _parsed(text: str) -> Expression:
    try:
        return parse(text)
    except ExpressionError as error:
        raise WrongSettings(f"--where {text!r:.200} {error}") from None


def _computed(expression: Expression, table: pa.Table, unread: dict[int, str]) -> Any:
    match expression:
        case Not(part=part):
            return pc.invert(_computed(part, table, unread))
        case Joined(every=every, parts=parts):
            return reduce(pc.and_kleene if every else pc.or_kleene, [_computed(each, table, unread) for each in parts])
        case IsNull(column=column):
            return _cells(column, table).values.is_null()
        case Column():
            return truth(_cells(expression, table), unread)
    return _compared(expression, table, unread)


def _compared(expression: Comparison | Among, table: pa.Table, unread: dict[int, str]) -> Any:
    cells = _cells(expression.column, table)
    if isinstance(expression, Among):
        return among(cells, expression.values, unread)
    sign, value = expression.operator, expression.value
    if isinstance(value, Column):
        return of_columns(cells, sign, _cells(value, table), unread)
    return with_literal(cells, sign, value, unread)


def _cells(column: Column, table: pa.Table) -> Cells:
    return Cells(column.name, plain(table.column(column.name)), is_spelled(table.schema.field(column.name)))
