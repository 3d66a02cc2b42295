import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.formats.expressions import MAX_CHARACTERS, checked_guard, checked_size

SYMBOLS = [sympy.Symbol(f"s{index}", positive=True, integer=True) for index in range(3)]
SIZES = st.recursive(
    st.sampled_from(SYMBOLS) | st.integers(-100, 100).map(sympy.Integer),
    lambda inner: st.builds(
        lambda make, pair: make(*pair),
        st.sampled_from(
            [sympy.Add, sympy.Mul, sympy.Max, sympy.Min, lambda a, b: sympy.Piecewise((a, sympy.Gt(b, 1)), (b, True))]
        ),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)


@given(SIZES)
def test_sympys_expressions_keep_their_value(expression: sympy.Basic) -> None:
    text = sympy.srepr(expression)

    assert sympy.sympify(checked_size(text)) == sympy.sympify(text)


@given(st.text(max_size=40))
def test_any_other_text_raises_value_error(text: str) -> None:
    for check in (checked_size, checked_guard):
        try:
            plain = check(text)
        except ValueError:
            continue
        assert check(plain) == plain


@pytest.mark.parametrize(
    "text",
    [
        "s0",
        "s0 + 1",
        "2*s0 // 3",
        "Symbol('s77', positive=True, integer=True)",
        "Add(FloorDiv(Add(Symbol('s53', integer=True), Integer(-1)), Integer(2)), Integer(1))",
        "TruncToInt(Mul(Float('1.7', precision=53), ToFloat(Symbol('s0', integer=True))))",
        "FloatPow(ToFloat(Symbol('s77', integer=True)), Float('0.5', precision=53))",
        "Pow(Symbol('s77', integer=True), Integer(2))",
        "Pow(Symbol('s77', integer=True), Rational(1, 2))",
        "Piecewise(ExprCondPair(Integer(1), Equality(Symbol('s0', integer=True), Integer(1))))",
        "PythonMod(Mul(Integer(-1), Symbol('s77', integer=True)), Integer(8))",
        "StrictLessThan(Symbol('u0', integer=True), Integer(100))",
        "Where(Eq(s0, 1), s1, Max(s2, 4))",
        "IntInfinity()",
        "true",
    ],
)
def test_sizes_of_real_programs_are_accepted(text: str) -> None:
    checked_size(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "eval('1')",
        "__import__('os')",
        "().__class__",
        "s0.__class__",
        "lambdify((), '1')()",
        "sympify('1')",
        "Symbol('x')",
        "Symbol('s0', cls=lambdify)",
        "Symbol(name)",
        "Integer('9' * 9)",
        "Float('1e999999999999')",
        "Float('1', precision=99999999)",
        "Add(*[1])",
        "Add(**{})",
        "[s0 for s0 in s1]",
        "lambda: 1",
        "s0 if s1 else s2",
        "(s0 := 1)",
        "f'{s0}'",
        "'text'",
        "s0 @ s1",
        "s0; s1",
        "s0\ns1",
        "2 ** s0",
        "2 ** 65",
        "9 ** 9 ** 9",
        "9 ^ 99999999",
        "1 << 99999999",
        "LShift(1, Symbol('s0'))",
        "Pow(Pow(Pow(9, 64), 64), 64)",
        "Pow(9, Integer(99999999))",
        "Pow(9, Float('1e9', precision=53))",
        "1" * 4000,
        "(" * 1000 + ")" * 1000,
        "-" * 50_000 + "1",
        "s0 + " * MAX_CHARACTERS + "s0",
    ],
)
def test_other_sizes_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expression"):
        checked_size(text)


@pytest.mark.parametrize(
    "text",
    [
        "L['x'].size()[0] == L['y'].size()[0]",
        "L['flat_args'][0].size()[0] >= 2",
        "L['x']['p q'][0].stride()[1] != 1",
        "(4*L['x'].size()[0]) == (8*(L['x'].size()[0] // 2))",
        "min(L['y'].size()[0], L['x'].size()[0]) <= L['x'].size()[0]",
        "math.trunc(1.7*torch.sym_float(L['x'].size()[0])) != 1",
        "(1 if L['x'].size()[0] < 2 else 3) == 3 and not L['n'] == 4 or L['x'].size()[0] <= math.inf",
        "L['x'].size()[0]**2 < 100",
        "L['n'] == 3",
    ],
)
def test_guards_of_real_programs_are_accepted(text: str) -> None:
    assert checked_guard(text).replace("(", "").replace(")", "").replace(" ", "") == text.replace("(", "").replace(
        ")", ""
    ).replace(" ", "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "print(1)",
        "L",
        "L.size()",
        "L[0](1)",
        "L['x'].__class__",
        "L['x'].size",
        "L['x'].size()",
        "L['x'].size()[L['y']]",
        "L['x'].size(1)[0]",
        "L['x'].numpy()[0]",
        "L['x\"']",
        "L['x\\n'] == 1",
        "L[1.5] == 1",
        "math.factorial(9)",
        "math.__loader__",
        "torch.load('x')",
        "torch.sym_float.__globals__",
        "torch.ops.aten.from_file('x')",
        "max(key=print)",
        "max(*L)",
        "L['x'] in [1]",
        "L['x'] is None",
        "2 ** L['x'].size()[0] > 1",
        "9 ** 9 ** 9 > 1",
        "1 << 99999999",
        "'a' * 9",
        "True or exec('1')",
        "(lambda: 1)()",
        "[1][0]",
        "1; 2",
        "1\n2",
        '1, "x")\nimport os #',
    ],
)
def test_other_guards_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expression"):
        checked_guard(text)
