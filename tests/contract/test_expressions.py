"""``when`` of a graph and ``--where`` of a batch select the same rows."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.row_filter import compiled
from shoal_schema.expressions.evaluation import evaluate, tensor_operand
from shoal_schema.expressions.grammar import ExpressionError, parse
from shoal_schema.wire.datatypes import DTYPES

Rows = dict[str, tuple[str, list[Any]]]
"""Column -> datatype and value by row; None is unknown."""
ARROW = {
    "INT8": pa.int8(), "INT64": pa.int64(), "UINT64": pa.uint64(), "FP32": pa.float32(), "FP64": pa.float64(),
    "BOOL": pa.bool_(), "BYTES": pa.string(),
}  # fmt: skip


def by_when(text: str, rows: Rows) -> list[int]:
    """Return the rows that a graph's step gets."""
    columns = {}
    for name, (datatype, cells) in rows.items():
        known = np.array([cell is not None for cell in cells], bool)
        filler: Any = b"" if datatype == "BYTES" else 0
        values = [filler if cell is None else cell.encode() if isinstance(cell, str) else cell for cell in cells]
        columns[name] = tensor_operand(np.array(values, DTYPES[datatype]), datatype, known)
    found: list[int] = np.flatnonzero(evaluate(parse(text), columns, {}).so).tolist()
    return found


def by_where(text: str, rows: Rows) -> list[int]:
    """Return the rows that a batch scores."""
    arrays = {name: pa.array(cells, ARROW[datatype]) for name, (datatype, cells) in rows.items()}
    table = pa.table(arrays)
    where = compiled(text, table.schema)
    assert where is not None
    found, unread = where.select(table)
    assert unread == {}
    rows_found: list[int] = np.flatnonzero(found.so).tolist()
    return rows_found


WAYS = pytest.mark.parametrize("selected", [by_when, by_where], ids=["when", "where"])
TABLE: Rows = {
    "s.n": ("INT64", [1, 2, 2**63 - 1, None, -(2**53) - 1]),
    "s.u": ("UINT64", [1, 2, 2**64 - 1, 0, None]),
    "s.i": ("INT8", [-128, 0, 127, None, 5]),
    "s.f": ("FP32", [0.5, math.nan, math.inf, None, -math.inf]),
    "s.d": ("FP64", [1.0, 0.1, 2.0**63, 2.0**53, None]),
    "s.t": ("BYTES", ["a", "\u00e9", "", None, "a\0"]),
    "s.v": ("BYTES", ["b", "\u00e9", None, "", "a"]),
    "s.ok": ("BOOL", [True, False, True, None, False]),
    "s.no": ("BOOL", [False, False, True, True, None]),
}


@WAYS
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        # Numbers are compared without rounding, whatever their types.
        ("s.n == 2", [1]),
        ("s.n != 2", [0, 2, 4]),
        ("s.n < 1.5", [0, 4]),
        ("s.n >= 9223372036854775807", [2]),
        ("s.n == 9223372036854775807.0", []),
        ("s.n > -99999999999999999999999", [0, 1, 2, 4]),
        ("s.n == -9007199254740993", [4]),
        ("s.n <= -9007199254740992.0", [4]),
        ("s.u == -1", []),
        ("s.u >= 18446744073709551615", [2]),
        ("s.u < 1e300", [0, 1, 2, 3]),
        ("s.i == 300", []),
        ("s.i != 300", [0, 1, 2, 4]),
        ("s.i > -128.5", [0, 1, 2, 4]),
        ("s.i in [127, 300, 0.0, 0.5]", [1, 2]),
        ("s.i not in []", [0, 1, 2, 4]),
        ("s.d == 0.1", [1]),
        ("s.d == 9007199254740993", []),
        ("s.d < 9007199254740993", [0, 1, 3]),
        ("s.d in [9007199254740992, 0.1]", [1, 3]),
        ("s.f > 1e400", []),
        ("s.f == 1e400", [2]),
        ("s.f > 1" + "0" * 400, [2]),
        ("s.f <= -1" + "0" * 400, [4]),
        ("s.n < s.d", [2]),
        ("s.d == s.n", [0]),
        ("s.u > s.n", [2]),
        ("s.u == s.n", [0, 1]),
        ("s.i < s.d", [0, 1, 2]),
        # NaN differs from every number, itself included; it is not null.
        ("s.f == s.f", [0, 2, 4]),
        ("s.f != s.f", [1]),
        ("s.f != 0.5", [1, 2, 4]),
        ("s.f < 1", [0, 4]),
        ("not (s.f < 1)", [1, 2]),
        ("s.f == null", [3]),
        # Texts.
        ("s.t == 'a'", [0]),
        ("s.t == 'a\\0'", [4]),
        ("s.t > 'a'", [1, 4]),
        ("s.t == '\u00e9'", [1]),
        ("s.t in ['', 'b', null]", [2]),
        ("s.t not in ['']", [0, 1, 4]),
        ("s.t < s.v", [0]),
        ("s.t == s.v", [1]),
        # Truth values.
        ("s.ok", [0, 2]),
        ("not s.ok", [1, 4]),
        ("s.ok == false", [1, 4]),
        ("s.ok != TRUE", [1, 4]),
        ("s.ok < true", [1, 4]),
        ("s.ok in [true]", [0, 2]),
        ("s.ok == s.no", [1, 2]),
        # A comparison with an unknown value is unknown; only `== null` is true of it.
        ("s.n == null", [3]),
        ("s.n != None", [0, 1, 2, 4]),
        ("s.n is not null", [0, 1, 2, 4]),
        ("s.n in [null]", []),
        ("not (s.n == 2)", [0, 2, 4]),
        ("s.n == 2 or s.t == null", [1, 3]),
        ("s.n == 2 and s.t == null", []),
        ("s.n == 1 or s.u == 0", [0, 3]),
        ("not (s.n == 2 and s.u == 0)", [0, 1, 2, 4]),
        ("not (s.n == 2 or s.u == 0)", [0, 2]),
        ("(s.ok or s.no) and s.n > 0", [0, 2]),
        ("s['n'] == 2", [1]),
    ],
)  # fmt: skip
def test_both_select_the_same_rows(selected: Callable[[str, Rows], list[int]], text: str, rows: list[int]) -> None:
    assert selected(text, TABLE) == rows


EDGES = [2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -1, -(2**53) - 1, -(2**63)]
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "INT8": st.integers(-128, 127),
    "INT64": st.integers(-3, 3) | st.sampled_from([each for each in EDGES if -(2**63) <= each < 2**63]),
    "UINT64": st.integers(0, 3) | st.sampled_from([each for each in EDGES if 0 <= each < 2**64]),
    "FP32": st.integers(-3, 3).map(float) | st.floats(width=32),
    "FP64": st.integers(-3, 3).map(float) | st.sampled_from(EDGES).map(float) | st.floats(),
    "BOOL": st.booleans(),
    "BYTES": st.sampled_from(["", "a", "b", "a\0", "\u00e9"]) | st.text(max_size=3),
}
NUMBERS = st.integers(-3, 3) | st.sampled_from(EDGES) | st.floats(allow_nan=False, allow_infinity=False)
LITERALS: dict[str, st.SearchStrategy[Any]] = {
    "number": NUMBERS.map(repr),
    "text": st.text(max_size=3).map(repr),
    "truth": st.sampled_from(["true", "False"]),
}
COLUMNS = {f"s.{name.lower()}{index}": name for name in CELLS for index in (1, 2)}


def sort_of(datatype: str) -> str:
    return {"BYTES": "text", "BOOL": "truth"}.get(datatype, "number")


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """Draw an expression of one comparison."""
    name = draw(st.sampled_from(sorted(COLUMNS)))
    sort = sort_of(COLUMNS[name])
    literals = LITERALS[sort]
    others = st.sampled_from([each for each, datatype in COLUMNS.items() if sort_of(datatype) == sort])
    signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    listed = st.lists(literals | st.just("null"), max_size=3).map(lambda each: f"[{', '.join(each)}]")
    forms = [
        st.builds("{} {} {}".format, st.just(name), signs, literals | others),
        st.builds("{} {} {}".format, st.just(name), st.sampled_from(["in", "not in"]), listed),
        st.sampled_from([f"{name} == null", f"{name} != null"]),
        *([st.just(name)] if sort == "truth" else []),
    ]
    return draw(st.one_of(forms))


EXPRESSIONS = st.recursive(
    comparisons(),
    lambda parts: (
        st.builds("({}) {} ({})".format, parts, st.sampled_from(["and", "or"]), parts) | parts.map("not ({})".format)
    ),
    max_leaves=6,
)


@given(st.data(), EXPRESSIONS, st.integers(0, 6))
def test_any_expression_selects_the_same_rows(data: st.DataObject, text: str, count: int) -> None:
    rows: Rows = {
        name: (datatype, data.draw(st.lists(st.none() | CELLS[datatype], min_size=count, max_size=count)))
        for name, datatype in COLUMNS.items()
        if name in text
    }
    assert by_when(text, rows) == by_where(text, rows)


@pytest.mark.parametrize(
    "text",
    ["s.n.real == 1", "open('x')", "s.n ** 9 ** 9 > 1", "s.t == 'a' * 9999999", "s.n + 1 == 2", "0 < s.n < 2",
     "[x for x in s.n]", "(lambda: s.n)() == 1", "s.t == f'{s.n}'", "s.t == '\\ud800'", "s.t == b'a'", "s.n == 1j",
     "s.n < null", "not " * 51 + "s.ok", "(" * 500 + "s.ok" + ")" * 500, "s.n == " + "9" * 4096],
)  # fmt: skip
def test_hostile_expressions_are_rejected_by_both(text: str) -> None:
    with pytest.raises(ExpressionError):
        by_when(text, TABLE)
    with pytest.raises(InvalidSettings):
        by_where(text, TABLE)
