"""Which rows are meant: an expression over columns, as Arrow computes it. Pure.

Text of CSV files and of paths is compared with numbers as the number that it spells, with `true` and `false` as those
words, with text as text. Of two such columns the numbers are compared where both cells spell one, else the text.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shoal_runtime.offline.errors import WrongSettings
from shoal_runtime.offline.kinds import is_spelled, plain
from shoal_runtime.offline.schemas import few
from shoal_runtime.offline.spelled import bools, numbers, wholes, without_words
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


@dataclass(frozen=True, slots=True)
class Where:
    """Which rows are meant.

    Args:
        expression: over the columns, and those that are computed.
        columns: that it names.
        spelled: columns of numbers or bools, by their names in the expression, and the text that spells them.
    """

    expression: pc.Expression
    columns: Sequence[str]
    spelled: Mapping[str, tuple[str, str]]

    def computed(self, table: pa.Table) -> tuple[pa.Table, dict[int, str]]:
        """Return the columns that the expression takes, and rows whose text spells none of what is compared."""
        found = table.select(self.columns)
        unread: dict[int, str] = {}
        for name, (column, kind) in self.spelled.items():
            texts = without_words(plain(table.column(column)))
            values, bad = _spelled_values(texts, kind)
            found = found.append_column(name, values)
            for row in bad:
                unread.setdefault(row, f"{column} is {texts[row].as_py()[:60]!r}, which is no {kind} (--where)")
        return found, unread


_NUMBER, _WHOLE, _BOOL, _EITHER = "number", "whole number", "bool", "number or text"
_SPELLED_TYPES: Final = {_NUMBER: pa.float64(), _WHOLE: pa.int64(), _BOOL: pa.bool_(), _EITHER: pa.float64()}


def _spelled_values(texts: Any, kind: str) -> tuple[Any, list[int]]:
    """Return what text spells, and the rows whose text spells nothing that can be compared."""
    if kind == _BOOL:
        return bools(texts)
    if kind == _WHOLE:
        return wholes(texts), []
    found, bad = numbers(texts)
    return found, bad if kind == _NUMBER else []


def compiled(text: str | None, schema: pa.Schema) -> Where | None:
    """Return the expression as Arrow evaluates it; None: all rows.

    Raises:
        WrongSettings: it is none, or names a column that is not there.
    """
    if text is None:
        return None
    spelled: dict[str, tuple[str, str]] = {}
    try:
        expression = _computed(_parsed(text), schema, spelled)
        added = [pa.field(name, _SPELLED_TYPES[kind]) for name, (_, kind) in spelled.items()]
        pa.schema([*schema, *added]).empty_table().filter(expression)
    except (pa.ArrowException, OverflowError, RecursionError) as error:
        raise WrongSettings(f"--where {text!r:.200} cannot be: {error}") from None
    return Where(expression, columns_of(text, schema), spelled)


def columns_of(text: str | None, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression names."""
    if text is None:
        return []
    names = (column.name for column in named_columns(_parsed(text)))
    known = set(schema.names)
    return [name for name in dict.fromkeys(names) if name in known]


def _parsed(text: str) -> Expression:
    try:
        return parse(text)
    except ExpressionError as error:
        raise WrongSettings(f"--where {text!r:.200} {error}") from None


def _computed(expression: Expression, schema: pa.Schema, spelled: dict[str, tuple[str, str]]) -> pc.Expression:
    match expression:
        case Column(name=name):
            return _field(name, schema, _BOOL, spelled)
        case Comparison():
            return _compared(expression, schema, spelled)
        case Among(column=column, values=values):
            return _among(column.name, list(values), schema, spelled)
        case IsNull(column=column):
            return _field(column.name, schema, "", spelled).is_null()
        case Not(part=part):
            return ~_computed(part, schema, spelled)
        case Joined(every=every, parts=parts):
            return reduce(
                operator.and_ if every else operator.or_, [_computed(each, schema, spelled) for each in parts]
            )


def _compared(comparison: Comparison, schema: pa.Schema, spelled: dict[str, tuple[str, str]]) -> pc.Expression:
    name, sign, value = comparison.column.name, comparison.operator, comparison.value
    if isinstance(value, Column):
        return _of_columns(name, sign, value.name, schema, spelled)
    return _with_literal(name, sign, value, schema, spelled)


def _with_literal(
    name: str, sign: str, value: Any, schema: pa.Schema, spelled: dict[str, tuple[str, str]]
) -> pc.Expression:
    compare, kind = _COMPARISONS[sign], _kind(value)
    field = _field(name, schema, kind, spelled)
    if kind != _NUMBER or not is_spelled(schema.field(name)):
        return compare(field, pc.scalar(value))
    near = compare(field, pc.scalar(float(value)))
    if not isinstance(value, int):
        return near
    # A fraction of 64 bits does not tell large whole numbers apart.
    whole = _field(name, schema, _WHOLE, spelled)
    return pc.if_else(whole.is_valid(), compare(whole, pc.scalar(value)), near)


def _among(name: str, values: list[Any], schema: pa.Schema, spelled: dict[str, tuple[str, str]]) -> pc.Expression:
    kinds = {_kind(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else ""
    field = _field(name, schema, kind, spelled)
    if kind == _NUMBER and is_spelled(schema.field(name)):
        return reduce(operator.or_, [_with_literal(name, "==", value, schema, spelled) for value in values])
    # Null is among nothing, and not among nothing, as it equals nothing.
    return pc.if_else(field.is_valid(), field.isin(values), _UNKNOWN)


def _of_columns(
    one: str, sign: str, other: str, schema: pa.Schema, spelled: dict[str, tuple[str, str]]
) -> pc.Expression:
    compare = _COMPARISONS[sign]
    texts = [_field(name, schema, "", spelled) for name in (one, other)]
    if not all(is_spelled(schema.field(name)) for name in (one, other)):
        kinds = [_NUMBER if _counts(schema.field(name).type) else "" for name in (other, one)]
        return compare(*(_field(name, schema, kind, spelled) for name, kind in zip((one, other), kinds, strict=True)))
    found = compare(*texts)
    for kind in (_EITHER, _WHOLE):
        values = [_field(name, schema, kind, spelled) for name in (one, other)]
        found = pc.if_else(values[0].is_valid() & values[1].is_valid(), compare(*values), found)
    return found


def _counts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _kind(value: Any) -> str:
    return _BOOL if isinstance(value, bool) else _NUMBER if isinstance(value, int | float) else ""


def _field(name: str, schema: pa.Schema, kind: str, spelled: dict[str, tuple[str, str]]) -> pc.Expression:
    """Return a column, as what it is compared with where it is text that may spell that."""
    if name not in schema.names:
        raise WrongSettings(f"--where names {name}, and the input has the columns {few(schema.names)}")
    if not kind or not is_spelled(schema.field(name)):
        return pc.field(name)
    computed = f"\0{kind}\0{name}"
    spelled[computed] = (name, kind)
    return pc.field(computed)
