"""Which rows an expression means, over numpy's columns."""

from typing import Any

import numpy as np
import pytest

from shoal_proxy.graph.conditions import column, meant
from shoal_schema.expressions import parse

KNOWN = np.array([True, True, True, False])
COLUMNS = {
    "s.n": column(np.array([1, 2, 2**63 - 1, 0], np.int64), "INT64", KNOWN),
    "s.u": column(np.array([[0], [2], [2**64 - 1], [0]], np.uint64), "UINT64", KNOWN),
    "s.f": column(np.array([0.5, np.nan, np.inf, 0], np.float32), "FP32", KNOWN),
    "s.h": column(np.array([0.1, 1, 2, 0], np.float16), "FP16", KNOWN),
    "s.b": column(np.array([0x3F80, 0x4000, 0x0000, 0], np.uint16), "BF16", KNOWN),  # 1, 2, 0
    "s.t": column(np.array([b"a", "\u00e9".encode(), b"", b"a"], object), "BYTES", KNOWN),
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
        ("s.f < 1", [0]),
        ("s.f != 0.5", [1, 2]),  # NaN is unequal to everything, itself included
        ("s.f > 1" + "0" * 400, []),
        ("s.f < 1" + "0" * 400, [0]),
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
    found: Any = np.flatnonzero(meant(parse(text), COLUMNS)).tolist()
    assert found == rows
