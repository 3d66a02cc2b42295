"""Which rows an expression means, over numpy's columns."""

import math
import operator
from typing import Any

import numpy as np
import pytest

from shoal_proxy.graph.conditions import Values1D, column, matching_rows
from shoal_schema.fields.expressions import parse
from shoal_schema.wire.datatypes import DTYPES

KNOWN = np.array([True, True, True, False])
COLUMNS = {
    "s.n": column(np.array([1, 2, 2**63 - 1, 0], np.int64), "INT64", KNOWN),
    "s.u": column(np.array([[0], [2], [2**64 - 1], [0]], np.uint64), "UINT64", KNOWN),
    "s.f": column(np.array([0.5, np.nan, np.inf, 0], np.float32), "FP32", KNOWN),
    "s.h": column(np.array([0.1, 1, 2, 0], np.float16), "FP16", KNOWN),
    "s.b": column(np.array([0x3F80, 0x4000, 0x0000, 0], np.uint16), "BF16", KNOWN),  # 1, 2, 0
    "s.t": column(np.array([b"a", "\u00e9".encode(), b"", b"a"], object), "BYTES", KNOWN),
    "s.d": column(np.array([1, 2, 2.0**63, 0], np.float64), "FP64", KNOWN),
    "s.w": column(np.array([2.0**53, -(2.0**53), np.inf, 0], np.float64), "FP64", KNOWN),
    "s.ok": column(np.array([True, False, True, True]), "BOOL", KNOWN),
}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("s.n == 2", [1]),
        ("s.n < 9223372036854775807", [0, 1]),
        ("s.n > -99999999999999999999999", [0, 1, 2]),
        ("s.u >= 18446744073709551615", [2]),
        ("s.u == -1", []),
        ("s.n < 1.5", [0]),
        ("s.n < s.d", [2]),  # 2**63 - 1 has no 64-bit float of its own
        ("s.d == s.n", [0, 1]),
        ("s.u > s.n", [2]),
        ("s.f < 1", [0]),
        ("s.f != 0.5", [1, 2]),  # NaN is unequal to everything, itself included
        ("s.f > 1" + "0" * 400, [2]),  # infinity is more than any integer
        ("s.f < 1" + "0" * 400, [0]),
        ("s.w == 9007199254740993", []),  # which has no 64-bit float of its own
        ("s.w != 9007199254740993", [0, 1, 2]),
        ("s.w < 9007199254740993", [0, 1]),
        ("s.w in [9007199254740993, 9007199254740992]", [0]),
        ("s.w >= -9007199254740993", [0, 1, 2]),
        ("s.h == 0.1", []),  # as Python compares it: half precision has no 0.1
        ("s.b >= 1", [0, 1]),
        ("s.t == 'a'", [0]),
        ("s.t == '\u00e9'", [1]),
        ("s.t in ['', 'b', null]", [2]),
        ("s.t not in ['']", [0, 1]),
        ("s.ok", [0, 2]),
        ("not s.ok", [1]),
        ("s.ok == false", [1]),
        ("s.n == null", [3]),
        ("s.n != null", [0, 1, 2]),
        ("not (s.n == 2)", [0, 2]),  # of an unknown value nothing is known
        ("s.n == 2 or s.t == null", [1, 3]),
        ("s.n == 2 and s.t == null", []),
        ("not (s.n == 2 and s.t == 'a')", [0, 1, 2]),
        ("s.n < s.u", [2]),
        ("s.f == s.f", [0, 2]),
    ],
)
def test_an_expression_means_these_rows(text: str, rows: list[int]) -> None:
    found: Any = np.flatnonzero(matching_rows(parse(text), COLUMNS)).tolist()
    assert found == rows


EDGES = [2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**400]
NUMBERS = [0, 1, -1, 0.5, -0.5, 1.5, 127, 128, -128, -129, 255, 1e300, -1e300, math.inf, *EDGES]
DATATYPES = ["INT8", "INT32", "INT64", "UINT8", "UINT64", "FP32", "FP64"]
OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def held(datatype: str) -> Values1D:
    """Return every number of the list as near as the datatype holds it; and NaN, if it does."""
    dtype = DTYPES[datatype]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            numbers = np.array([min(max(each, -1e308), 1e308) for each in NUMBERS] + [math.nan], dtype)
    else:
        limits = np.iinfo(dtype)
        numbers = np.array([int(min(max(each, int(limits.min)), int(limits.max))) for each in NUMBERS], dtype)
    return column(numbers, datatype, np.ones(len(numbers), bool))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_number_is_compared_with_every_literal_as_python_compares_them(datatype: str) -> None:
    values = held(datatype)
    for literal in NUMBERS:
        written = "1e400" if literal == math.inf else repr(literal)
        for sign, compare in OPERATORS.items():
            found = matching_rows(parse(f"s.x {sign} {written}"), {"s.x": values}).tolist()
            assert found == [compare(each, literal) for each in values.array.tolist()], (sign, literal)
        found = matching_rows(parse(f"s.x in [{written}, 3, null]"), {"s.x": values}).tolist()
        assert found == [each == literal for each in values.array.tolist()], literal


@pytest.mark.parametrize("one", DATATYPES)
@pytest.mark.parametrize("other", DATATYPES)
def test_every_number_is_compared_with_every_other_as_python_compares_them(one: str, other: str) -> None:
    left, right = held(one), held(other)
    for shift in range(len(right.array)):
        turned = Values1D(np.resize(np.roll(right.array, shift), len(left.array)), left.known)
        pairs = list(zip(left.array.tolist(), turned.array.tolist(), strict=True))
        for sign, compare in OPERATORS.items():
            found = matching_rows(parse(f"s.x {sign} s.y"), {"s.x": left, "s.y": turned}).tolist()
            assert found == [compare(*pair) for pair in pairs], (sign, shift)
