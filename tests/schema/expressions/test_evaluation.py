"""Numbers of any two datatypes, and literals, compare as Python compares them."""

import math
import operator

import numpy as np
import pytest

from shoal_schema.expressions.evaluation import Operand, evaluate, tensor_operand
from shoal_schema.expressions.grammar import parse
from shoal_schema.wire.datatypes import DTYPES, Array

EDGES = [2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**400]
NUMBERS = [0, 1, -1, 0.5, -0.5, 1.5, 127, 128, -128, -129, 255, 1e300, -1e300, math.inf, *EDGES]
DATATYPES = ["INT8", "INT32", "INT64", "UINT8", "UINT64", "FP32", "FP64"]
OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def operand(array: Array, datatype: str) -> Operand:
    return tensor_operand(array, datatype, np.ones(len(array), bool))


def rows_where(text: str, **columns: Operand) -> list[bool]:
    found: list[bool] = evaluate(parse(text), {f"s.{name}": each for name, each in columns.items()}, {}).so.tolist()
    return found


def held(datatype: str) -> Array:
    """Return every number of the list as near as the datatype holds it; and NaN, if it does."""
    dtype = DTYPES[datatype]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            numbers = np.array([min(max(each, -1e308), 1e308) for each in NUMBERS] + [math.nan], dtype)
    else:
        limits = np.iinfo(dtype)
        numbers = np.array([int(min(max(each, int(limits.min)), int(limits.max))) for each in NUMBERS], dtype)
    return numbers


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_number_is_compared_with_every_literal_as_python_compares_them(datatype: str) -> None:
    values = held(datatype)
    x, numbers = operand(values, datatype), values.tolist()
    for literal in NUMBERS:
        written = "1e400" if literal == math.inf else repr(literal)
        for sign, compare in OPERATORS.items():
            found = rows_where(f"s.x {sign} {written}", x=x)
            assert found == [compare(each, literal) for each in numbers], (sign, literal)
        assert rows_where(f"s.x in [{written}, 3, null]", x=x) == [each == literal for each in numbers], literal


@pytest.mark.parametrize("one", DATATYPES)
@pytest.mark.parametrize("other", DATATYPES)
def test_every_number_is_compared_with_every_other_as_python_compares_them(one: str, other: str) -> None:
    left, right = held(one), held(other)
    for shift in range(len(right)):
        turned = np.resize(np.roll(right, shift), len(left))
        pairs = list(zip(left.tolist(), turned.tolist(), strict=True))
        for sign, compare in OPERATORS.items():
            found = rows_where(f"s.x {sign} s.y", x=operand(left, one), y=operand(turned, other))
            assert found == [compare(*pair) for pair in pairs], (sign, shift)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("s.half == 0.1", [False, False, False]),  # as Python compares it: half precision has no 0.1
        ("s.half <= 0.1", [True, False, False]),
        ("s.brain >= 1", [True, True, False]),
        ("s.brain == s.half", [False, False, False]),
    ],
)
def test_small_floats_are_compared_by_their_values(text: str, rows: list[bool]) -> None:
    half = operand(np.array([[0.1], [1], [2]], np.float16), "FP16")
    brain = operand(np.array([0x3F80, 0x4000, 0x0000], np.uint16), "BF16")  # 1, 2, 0
    assert rows_where(text, half=half, brain=brain) == rows
