"""Checks of expressions in model files that torch evaluates during loading.

Torch passes two kinds of expressions to `eval`: sizes in sympy's notation (`Mul(Integer(2), Symbol('s0',
integer=True))`), and guards, Python arithmetic on input sizes (`L['x'].size()[0] % 2 == 0`). Each expression is parsed
here first, and only the forms that torch writes are accepted. The size of numbers and results is limited too.
"""

import ast
import functools
import re
from collections.abc import Callable
from typing import Final

MAX_CHARACTERS: Final = 65_536
MAX_BITS: Final = 4096
MAX_EXPONENT: Final = 64
SIZE_BITS: Final = 64
"""Bits of a size of a batch."""
MAX_PRECISION: Final = 128

SYMBOL: Final = re.compile(r"[A-Za-z_]{1,16}[0-9]{1,6}")
KEY: Final = re.compile(r"[\w .:/@+-]{1,256}")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?(e[+-]?[0-9]{1,3})?|[+-]?(inf|nan)")
_CONSTANTS: Final = frozenset({"oo", "int_oo", "zoo", "nan", "true", "false"})
_SUMS: Final = frozenset({"Add", "Max", "Min"})
_PRODUCTS: Final = frozenset({"Mul", "ModularIndexing"})
_POWERS: Final = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift", "RShift"})
_NOT_GROWING: Final = frozenset(
    {
        *("Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv", "IntTrueDiv", "FloatTrueDiv"),
        *("floor", "ceiling", "FloorToInt", "CeilToInt", "TruncToInt", "TruncToFloat", "RoundToInt"),
        *("RoundDecimal", "ToFloat", "Abs", "Identity", "Where", "IsNonOverlappingAndDenseIndicator"),
        *("Equality", "Unequality", "StrictLessThan", "StrictGreaterThan", "LessThan", "GreaterThan"),
        *("Eq", "Ne", "Lt", "Gt", "Le", "Ge", "And", "Or", "Not", "Xor", "ITE", "Piecewise", "ExprCondPair", "Tuple"),
        *("BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "BitwiseFn_bitwise_xor"),
        *(f"OpaqueUnaryFn_{name}" for name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh")),
        *(f"OpaqueUnaryFn_{name}" for name in ("acos", "asin", "atan", "exp", "log", "log2", "asinh")),
        *("sqrt", "log"),
    }
)
_NULLARY: Final = frozenset({"Infinity", "NegativeInfinity", "NaN", "IntInfinity", "NegativeIntInfinity"})
_BUILTINS: Final = frozenset({"min", "max", "abs", "round", "int", "float", "bool"})
_MATH: Final = frozenset(
    {
        *("floor", "ceil", "trunc", "sqrt", "isnan", "isinf", "exp", "log", "log2"),
        *("cos", "cosh", "sin", "sinh", "tan", "tanh", "acos", "asin", "atan"),
    }
)
_TORCH: Final = frozenset({"sym_float", "sym_int", "sym_max", "sym_min", "sym_not", "sym_ite", "_sym_sqrt"})
_INFINITE: Final = frozenset({"inf", "nan"})
_SHAPES: Final = frozenset({"size", "stride"})
_NUMBERS_OF_INPUTS: Final = frozenset({"dim", "numel", "storage_offset"})
_ARITHMETIC: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)
"""Without `^`, which sympy reads as a power."""


@functools.lru_cache(maxsize=4096)
def checked_size(text: str) -> str:
    """Check a size expression in the form of sympy's `srepr`, and return it normalized.

    Raises:
        ValueError: the expression has another form, or is too costly.
    """
    parsed = _parsed(text)
    _sympy(parsed)
    # Normalized, since sympy's tokenizer may read the original text differently than Python's parser.
    return ast.unparse(parsed)


def checked_guard(text: str) -> str:
    """Check a guard, a condition on input sizes as torch writes it, and return it normalized.

    Raises:
        ValueError: the expression has another form, or is too costly.
    """
    parsed = _parsed(text)
    _python(parsed)
    return ast.unparse(parsed)


def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"an expression of {len(text)} characters")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(text) from None


def _refused(what: str | ast.AST) -> ValueError:
    text = ast.unparse(what) if isinstance(what, ast.AST) else what
    return ValueError(f"the expression {text if len(text) <= 100 else text[:97] + '...'!r}")


def _bounded(bits: int, node: ast.AST) -> int:
    if bits > MAX_BITS:
        raise _refused(node)
    return bits


def _literal(node: ast.expr) -> int:
    """Return the number of bits of a numeric literal."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, int | float):
        raise _refused(node)
    return _bounded(node.value.bit_length() if isinstance(node.value, int) else SIZE_BITS, node)


def _raised(node: ast.AST, base_bits: int, exponent: ast.expr) -> int:
    """Return the maximum number of bits in the result of a power or shift.

    Raises:
        ValueError: the exponent is not a number, or the exponent or the result is too large.
    """
    if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub):
        exponent = exponent.operand
    value = _constant(exponent)
    if not isinstance(value, int | float) or not abs(value) <= MAX_EXPONENT:
        raise _refused(node)
    return _bounded(int((base_bits + 1) * max(1, abs(value))), node)


# Expressions of sympy


def _sympy(node: ast.expr) -> int:
    """Check a size expression, and return the maximum bits of its value."""
    if isinstance(node, ast.Name) and (node.id in _CONSTANTS or SYMBOL.fullmatch(node.id)):
        return SIZE_BITS
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return _sympy(node.operand)
    if isinstance(node, ast.Tuple):
        return max(map(_sympy, node.elts), default=1)
    if isinstance(node, ast.BinOp | ast.Compare):
        return _infix(node, _sympy)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _sympy_call(node, node.func.id)
    return _literal(node)


def _sympy_call(node: ast.Call, name: str) -> int:
    if name in _LEAVES:
        return _LEAVES[name](node)
    if node.keywords:
        raise _refused(node)
    if name in _NULLARY and not node.args:
        return 1
    if name in _POWERS and len(node.args) == 2:
        return _raised(node, _sympy(node.args[0]), _unwrapped(node.args[1]))
    bits = [_sympy(arg) for arg in node.args]
    # Bits of the result: a sum of n terms grows by the bits of n, a product by those of each factor.
    if name in _SUMS:
        return _bounded(max(bits, default=0) + len(bits).bit_length(), node)
    if name in _PRODUCTS:
        return _bounded(sum(bits), node)
    if name in _NOT_GROWING:
        return _bounded(max(bits, default=0) + 1, node)
    raise _refused(node)


def _unwrapped(node: ast.expr) -> ast.expr:
    """Return the literal inside `Integer(...)` or `Float('...', precision=53)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in _NUMBERS:
        return node
    _LEAVES[node.func.id](node)
    if node.func.id == "Rational":
        return ast.Constant(1)  # a root has no more bits than its base
    text = _constant(node.args[0])
    return ast.Constant(float(text)) if isinstance(text, str) else node.args[0]


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _symbol(node: ast.Call) -> int:
    name = _constant(node.args[0]) if len(node.args) == 1 else None
    flags = [_constant(each.value) for each in node.keywords]
    if not isinstance(name, str) or not SYMBOL.fullmatch(name) or not all(isinstance(flag, bool) for flag in flags):
        raise _refused(node)
    return SIZE_BITS


def _integer(node: ast.Call) -> int:
    if node.keywords or not 1 <= len(node.args) <= 2:
        raise _refused(node)
    return max(_literal(arg.operand if isinstance(arg, ast.UnaryOp) else arg) for arg in node.args)


def _float(node: ast.Call) -> int:
    text = _constant(node.args[0]) if len(node.args) == 1 else None
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text):
        raise _refused(node)
    for each in node.keywords:
        value = _constant(each.value)
        if each.arg not in ("precision", "dps") or not isinstance(value, int) or not 0 < value <= MAX_PRECISION:
            raise _refused(node)
    return SIZE_BITS


_NUMBERS: Final[dict[str, Callable[[ast.Call], int]]] = {"Integer": _integer, "Rational": _integer, "Float": _float}
_LEAVES: Final = {"Symbol": _symbol, **_NUMBERS}


# Forms common to both languages


def _infix(node: ast.BinOp | ast.Compare, value: Callable[[ast.expr], int]) -> int:
    if isinstance(node, ast.Compare):
        if not all(isinstance(op, ast.Eq | ast.NotEq | ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops):
            raise _refused(node)
        return max(map(value, (node.left, *node.comparators)))
    if isinstance(node.op, ast.Pow | ast.LShift | ast.RShift):
        return _raised(node, value(node.left), node.right)
    if not isinstance(node.op, _ARITHMETIC):
        raise _refused(node)
    left, right = value(node.left), value(node.right)
    return _bounded(left + right if isinstance(node.op, ast.Mult) else max(left, right) + 1, node)


# Guards of torch


def _python(node: ast.expr) -> int:
    """Check a guard, and return the maximum bits of its value."""
    if isinstance(node, ast.BinOp | ast.Compare):
        return _infix(node, _python)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd | ast.Not):
        return _python(node.operand)
    if isinstance(node, ast.BoolOp | ast.IfExp):
        # The value is one of the operands.
        choices = node.values if isinstance(node, ast.BoolOp) else (node.test, node.body, node.orelse)
        return max(map(_python, choices))
    if isinstance(node, ast.Call):
        # `L['x'].dim()`, `min(...)`, `math.floor(...)`, `torch.sym_max(...)`
        if not node.keywords and not node.args and _is_method(node.func, _NUMBERS_OF_INPUTS):
            return SIZE_BITS
        of_math, of_torch = _is_of_module(node.func, "math", _MATH), _is_of_module(node.func, "torch", _TORCH)
        builtin = isinstance(node.func, ast.Name) and node.func.id in _BUILTINS
        if node.keywords or not (of_math or of_torch or builtin):
            raise _refused(node)
        return _bounded(max(map(_python, node.args), default=0) + 1, node)
    if _is_of_module(node, "math", _INFINITE) or _is_input(node):
        return SIZE_BITS
    # `INPUT.size()[0]` or `INPUT.stride()[0]`
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
        call = node.value
        plain = not call.args and not call.keywords and isinstance(_constant(node.slice), int)
        if plain and _is_method(call.func, _SHAPES):
            return SIZE_BITS
    return _literal(node)


def _is_method(node: ast.expr, names: frozenset[str]) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in names and _is_input(node.value)


def _is_of_module(node: ast.expr, module: str, names: frozenset[str]) -> bool:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    return node.value.id == module and node.attr in names


def _is_input(node: ast.expr) -> bool:
    """Return whether a node is an input `L['x']`, or an element of one."""
    # From the outermost subscript inward to the name.
    while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key = node.slice.value
        if not (isinstance(key, int) or (isinstance(key, str) and KEY.fullmatch(key))):
            return False
        node = node.value
        if isinstance(node, ast.Name):
            return node.id == "L"
    return False
