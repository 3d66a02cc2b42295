"""Mutants: a module with one token changed. Pure; `mutants` runs them."""

import ast
import copy
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any, cast

SWAPS: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNSEEN = ("TYPE_CHECKING", "__name__ == '__main__'")
"""Conditions of what no test can reach."""
UNFELT = ("frozen", "slots")
"""Keywords that keep programmers from mistakes, and change nothing where none is made."""
TUNING = (ast.Constant, ast.Tuple, ast.USub, ast.UnaryOp, ast.Mult, ast.Div, ast.LShift, ast.BinOp, ast.Name, ast.Load)
"""What a module's constants of lengths, times and factors are made of. Powers are exact on purpose (``2**31 - 1``), and
what stands in tables and calls is a code, a size or a bound that others know."""


@dataclass(frozen=True)
class Mutant:
    """One changed token: the file's ``number``-th that can be changed."""

    path: str
    number: int
    line: int
    function: str
    change: str

    @property
    def name(self) -> str:
        """How it is excused: without the line, which moves."""
        return f"{self.path} {self.function}: {self.change}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return every mutant of a file, in order."""
    places = _Places()
    places.visit(ast.parse(source))
    return [Mutant(path, number, *found) for number, found in enumerate(places.found)]


def compiled(mutant: Mutant, source: str) -> CodeType:
    """Return the code of the mutated module."""
    tree = _Places(mutant.number).visit(ast.parse(source))
    return compile(ast.fix_missing_locations(cast("ast.Module", tree)), mutant.path, "exec")


def changed(node: ast.AST) -> ast.AST | None:
    """Return a node with one token changed; None where there is nothing to change."""
    made: Any = copy.copy(node)
    match made:
        case ast.Compare(ops=[op, *rest]) if type(op) in SWAPS:
            made.ops = [SWAPS[type(op)](), *rest]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            made.op = SWAPS[type(op)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return cast("ast.AST", operand)
        case ast.Break() | ast.Continue():
            return cast("ast.AST", ast.copy_location(SWAPS[type(made)](), node))
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            made.id = NAMES[name]
        case ast.Constant(value=bool() as value):
            made.value = not value
        case ast.Constant(value=int() | float() as value):
            made.value = value + 1
        case _:
            return None
    return cast("ast.AST", made)


def far(node: ast.AST) -> ast.AST | None:
    """Return a number of a module's constant times ten: 20 and 21 are as good where it is tuning, 200 is not."""
    made: Any = changed(node)
    if made is not None and isinstance(node, ast.Constant) and node.value and not isinstance(node.value, bool):
        made.value = cast("float", node.value) * 10
    return cast("ast.AST | None", made)


def is_tuning(node: ast.AST) -> bool:
    """Return whether an assignment, at a module's level, is of a length, a time or a factor."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return value is not None and all(isinstance(each, TUNING) for each in ast.walk(value))


class _Places(ast.NodeTransformer):
    """Counts what can be changed, annotations left out; replaces the wanted one."""

    def __init__(self, wanted: int | None = None) -> None:
        self.wanted = wanted
        self.found: list[tuple[int, str, str]] = []
        self._within: list[str] = []
        self._changed = changed

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.If) and ast.unparse(node.test) in UNSEEN:
            return node
        if isinstance(node, ast.keyword) and node.arg in UNFELT:
            return node
        if not self._within and isinstance(node, ast.stmt):
            self._changed = far if is_tuning(node) else changed
        if (replacement := self._changed(node)) is not None:
            line: int = cast("Any", node).lineno
            self.found.append((line, ".".join(self._within), _told(node, replacement)))
            if len(self.found) - 1 == self.wanted:
                return replacement
        own = [node.name] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []
        self._within += own
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns"):
                setattr(node, field, self._visited(value, node))
        del self._within[len(self._within) - len(own) :]
        return node

    def _visited(self, value: object, of: ast.AST) -> object:
        if isinstance(value, list):
            return [self._visited(each, of) for each in cast("Iterable[object]", value)]
        return self.visit(value) if isinstance(value, ast.AST) and not _is_unknown_size(value, of) else value


def _is_unknown_size(node: ast.AST, of: ast.AST) -> bool:
    """Return whether a node is the size that numpy works out: any that is negative says so."""
    reshapes = isinstance(of, ast.Call) and isinstance(of.func, ast.Attribute) and of.func.attr == "reshape"
    return reshapes and ast.unparse(node) == "-1"


def _told(before: ast.AST, after: ast.AST) -> str:
    return " -> ".join(" ".join(ast.unparse(each).split())[:60] for each in (before, after))
