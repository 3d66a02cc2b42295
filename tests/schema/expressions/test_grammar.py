"""Texts become trees; all else is refused."""

import pytest

from shoal_schema.expressions.grammar import (
    BooleanOperation,
    Column,
    Comparison,
    Expression,
    ExpressionError,
    IsNull,
    Membership,
    Negation,
    columns_of,
    parse,
)

A, B = Column("a"), Column("s.b")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", A),
        ("s.b", B),
        ("s['x/y:0'] > 1", Comparison(Column("s.x/y:0"), ">", 1)),
        (" a == 1 ", Comparison(A, "==", 1)),
        ("a < -1.5", Comparison(A, "<", -1.5)),
        ("a != s.b", Comparison(A, "!=", B)),
        ("a == 'x'", Comparison(A, "==", "x")),
        ("a == TRUE", Comparison(A, "==", True)),
        ("a == null", IsNull(A)),
        ("a is not none", Negation(IsNull(A))),
        ("a in [1, null]", Membership(A, (1, None))),
        ("a not in (1,)", Negation(Membership(A, (1,)))),
        ("not a and s.b or a", BooleanOperation(False, (BooleanOperation(True, (Negation(A), B)), A))),
    ],
)
def test_a_text_becomes_a_tree(text: str, tree: Expression) -> None:
    assert parse(text) == tree


def test_the_columns_are_those_that_it_names() -> None:
    names = [column.name for column in columns_of(parse("a < s.b or not (c in [1]) and d == null or e"))]
    assert names == ["a", "s.b", "c", "d", "e"]


@pytest.mark.parametrize(
    "text",
    ["", "a ==", "1 < a", "a < 1 < 2", "a + 1 == 2", "f(a)", "a.b.c == 1", "a[0] == 1", "a == f(1)", "a < null",
     "true", "a == -'x'", "lambda: a", "a == 1; b", "(" * 300 + "a" + ")" * 300, "not " * 51 + "a", "a == 1j",
     "a in a", "a is 5", "\x00"],
)  # fmt: skip
def test_what_is_none_is_rejected(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)
