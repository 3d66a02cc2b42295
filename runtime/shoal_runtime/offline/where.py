"""Which rows are meant: an expression over columns, in words that Python, SQL and pandas share."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shoal_runtime.offline.errors import WrongSettings

_COMPARISONS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNKNOWN: Final = pc.scalar(pa.scalar(None, pa.bool_()))
_WORDS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None, "none": None}


def compiled(text: str | None, schema: pa.Schema) -> pc.Expression | None:
    """Return the expression as Arrow evaluates it; None: all rows.

    Raises:
        WrongSettings: it is none, or names a column that is not there.
    """
    if text is None:
        return None
    try:
        expression = _boolean(_parsed(text), schema)
        schema.empty_table().filter(expression)
    except (pa.ArrowException, OverflowError, RecursionError) as error:
        raise WrongSettings(f"--where {text!r:.200} cannot be: {error}") from None
    return expression


def columns_of(text: str | None, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression names."""
    if text is None:
        return []
    names = (node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name))
    return [name for name in dict.fromkeys(names) if name in schema.names]


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise WrongSettings(
            f"--where {text!r:.200} is no expression: write it as in \"label == 'cat' and size >= 10\""
        ) from None


def _boolean(node: ast.expr, schema: pa.Schema) -> pc.Expression:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return _joined(parts, operator.and_, schema)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return _joined(parts, operator.or_, schema)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return ~_boolean(part, schema)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _comparison(left, op, right, schema)
        case ast.Name():
            return _operand(node, schema)
    raise _refused(node)


def _joined(parts: list[ast.expr], join: Callable[[Any, Any], Any], schema: pa.Schema) -> pc.Expression:
    found = _boolean(parts[0], schema)
    for part in parts[1:]:
        found = join(found, _boolean(part, schema))
    return found


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, schema: pa.Schema) -> pc.Expression:
    column = _operand(left, schema)
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple):
        # Null is among nothing, and not among nothing, as it equals nothing.
        among = pc.if_else(column.is_valid(), column.isin([_literal(each) for each in right.elts]), _UNKNOWN)
        return among if isinstance(op, ast.In) else ~among
    if _is_word(right) and _literal(right) is None:
        return _is_null(column, op, right)
    if type(op) not in _COMPARISONS:
        raise _refused(right)
    named = isinstance(right, ast.Name) and not _is_word(right)
    return _COMPARISONS[type(op)](column, _operand(right, schema) if named else pc.scalar(_literal(right)))


def _is_word(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id.lower() in _WORDS) or (
        isinstance(node, ast.Constant) and node.value is None
    )


def _is_null(column: pc.Expression, op: ast.cmpop, right: ast.expr) -> pc.Expression:
    if isinstance(op, ast.Eq | ast.Is):
        return column.is_null()
    if isinstance(op, ast.NotEq | ast.IsNot):
        return ~column.is_null()
    raise _refused(right)


def _operand(node: ast.expr, schema: pa.Schema) -> pc.Expression:
    if not isinstance(node, ast.Name):
        raise _refused(node)
    if node.id not in schema.names:
        raise WrongSettings(f"--where names {node.id}, and the input has the columns {', '.join(schema.names)}")
    return pc.field(node.id)


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        number = node.operand.value
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number
    if isinstance(node, ast.Name) and node.id.lower() in _WORDS:
        return _WORDS[node.id.lower()]
    raise _refused(node)


def _refused(node: ast.expr) -> WrongSettings:
    return WrongSettings(
        f"--where cannot hold {ast.unparse(node)!r:.200}: it compares columns with numbers, texts, true, false and"
        " null, by == != < <= > >= in, joined by and, or, not"
    )
