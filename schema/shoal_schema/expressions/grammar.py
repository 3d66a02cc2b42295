"""Grammar of the expressions that select rows, a subset of the syntax that Python, SQL and pandas share.

``label == 'cat' and size >= 10`` is parsed into a tree; `docs/reference/expressions.md` lists the grammar. The text is
never run: only names, literals, comparisons and the words ``and``, ``or``, ``not`` and ``in`` are accepted.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_OPERATORS: Final[Mapping[type, str]] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_WORDS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None, "none": None}
_ALLOWED: Final = (
    "a comparison has a column's name on the left, one of == != < <= > >= in, and on the right a number, a text in"
    " quotes, true, false, null or another name; comparisons are joined by and, or, not"
)
MAX_LENGTH: Final = 4096
"""Characters of an expression."""
MAX_DEPTH: Final = 50
"""Levels of nesting: each is a recursive call of the evaluation."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Literal = str | int | float | bool


class ExpressionError(ValueError):
    """Error of a text that is not an expression.

    The message does not contain the text; it continues a sentence that begins with the quoted text.
    """


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or ``step.output`` of a graph.

    A column without a comparison is a condition of its own; its values must be truth values.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a column with a value other than null, or with another column."""

    column: Column
    operator: str
    value: Literal | Column


@dataclass(frozen=True, slots=True)
class Membership:
    """Test whether a column's value is one of several values."""

    column: Column
    values: tuple[Literal | None, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """Test whether a column's value is unknown; the result is always true or false."""

    column: Column


@dataclass(frozen=True, slots=True)
class Negation:
    """Negation of an expression; unknown stays unknown."""

    part: "Expression"


@dataclass(frozen=True, slots=True)
class BooleanOperation:
    """Conjunction (``every``) or disjunction of expressions."""

    every: bool
    parts: tuple["Expression", ...]


Expression = Column | Comparison | Membership | IsNull | Negation | BooleanOperation


def parse(text: str) -> Expression:
    """Parse the text of an expression into a tree.

    Raises:
        ExpressionError: the text is not an expression.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"has {len(text)} characters; the limit is {MAX_LENGTH}")
    try:
        # The syntax is a subset of Python's: parse it, then accept known nodes only.
        return _boolean(ast.parse(text.strip(), mode="eval").body, MAX_DEPTH)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, ExpressionError):
            raise
        raise ExpressionError(
            "is not an expression: write it as in \"label == 'cat' and size >= 10\", in a graph with STEP. before"
            " each name"
        ) from None


def columns_of(expression: Expression) -> Iterator[Column]:
    """Yield the columns of an expression, with repetitions."""
    match expression:
        case Column():
            yield expression
        case Comparison(column=column, value=value):
            yield column
            if isinstance(value, Column):
                yield value
        case Membership(column=column) | IsNull(column=column):
            yield column
        case Negation(part=part):
            yield from columns_of(part)
        case BooleanOperation(parts=parts):
            for each in parts:
                yield from columns_of(each)


def _boolean(node: ast.expr, depth: int) -> Expression:
    if not depth:
        raise ExpressionError(f"is nested deeper than {MAX_DEPTH} levels")
    match node:
        case ast.BoolOp(op=op, values=parts):
            return BooleanOperation(isinstance(op, ast.And), tuple(_boolean(part, depth - 1) for part in parts))
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return Negation(_boolean(part, depth - 1))
        case ast.Compare(
            left=left, ops=[ast.In() | ast.NotIn() as op], comparators=[ast.List() | ast.Tuple() as right]
        ):
            among = Membership(_column(left), tuple(_literal(each) for each in right.elts))
            return among if isinstance(op, ast.In) else Negation(among)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if _is_word(right) and _literal(right) is None:
            column = _column(left)
            # `== null` tests whether the value is unknown; null has no order.
            if isinstance(op, ast.Eq | ast.Is):
                return IsNull(column)
            if isinstance(op, ast.NotEq | ast.IsNot):
                return Negation(IsNull(column))
            raise _refused(right)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            column = _column(left)
            if type(op) not in _OPERATORS:
                raise _refused(right)
            # A bare name on the right is another column.
            named = isinstance(right, ast.Name | ast.Attribute | ast.Subscript) and not _is_word(right)
            return Comparison(column, _OPERATORS[type(op)], _column(right) if named else _literal(right))
    return _column(node)


def _is_word(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id.lower() in _WORDS) or (
        isinstance(node, ast.Constant) and node.value is None
    )


def _column(node: ast.expr) -> Column:
    match node:
        case ast.Name(id=name) if name.lower() not in _WORDS:
            return Column(name)
        # Outputs of a step, as STEP.NAME or STEP["NAME"].
        case ast.Attribute(value=ast.Name(id=step), attr=name):
            return Column(f"{step}.{name}")
        case ast.Subscript(value=ast.Name(id=step), slice=ast.Constant(value=str(name))):
            return Column(f"{step}.{name}")
    raise _refused(node)


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        if isinstance(node.value, str) and _SURROGATE.search(node.value):
            raise ExpressionError(f"cannot hold {node.value!r:.200}: half of a surrogate pair is no character")
        return node.value
    # Python parses -1 as the negation of 1.
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        number = node.operand.value
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number
    if isinstance(node, ast.Name) and node.id.lower() in _WORDS:
        return _WORDS[node.id.lower()]
    raise _refused(node)


def _refused(node: ast.expr) -> ExpressionError:
    return ExpressionError(f"cannot hold {ast.unparse(node)!r:.200}: {_ALLOWED}")
