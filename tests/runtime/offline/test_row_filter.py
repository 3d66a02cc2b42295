"""The rows that an expression selects."""

from typing import Any

import pyarrow as pa
import pytest

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.row_filter import columns_of, compiled
from shoal_runtime.offline.schemas import SPELLED
from shoal_runtime.offline.tables import filtered
from shoal_runtime.offline.windows import Window

ROWS = pa.table({"n": [1, 2, 3, None], "t": ["a", "b", None, "a"], "ok": [True, False, True, True], "m": [3, 2, 1, 0]})


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("n == 2", [2]),
        ("n != 2", [1, 3]),
        ("n >= 2", [2, 3]),
        ("n < -1", []),
        ("t == 'a'", [1, None]),
        ("t in ['a', 'b']", [1, 2, None]),
        # Null equals nothing, and differs from nothing.
        ("t not in ('a',)", [2]),
        ("not t in ('a',)", [2]),
        ("t != 'a'", [2]),
        ("n == null", [None]),
        ("n is not null", [1, 2, 3]),
        ("ok", [1, 3, None]),
        ("not ok", [2]),
        ("ok == false", [2]),
        ("n > m", [3]),
        ("n == 1 or n == 2 and t == 'b'", [1, 2]),
        ("(n == 1 or n == 2) and t == 'b'", [2]),
    ],
)
def test_an_expression_selects_these_rows(text: str, rows: list[Any]) -> None:
    where = compiled(text, ROWS.schema)
    assert where is not None
    found, unread = where.select(ROWS)
    assert ROWS.filter(pa.array(found.so)).column("n").to_pylist() == rows
    assert unread == {}


def test_the_columns_of_an_expression_are_read() -> None:
    assert columns_of("n > 1 and (t == 'a' or n < 5)", ROWS.schema) == ["n", "t"]
    assert columns_of(None, ROWS.schema) == []
    assert compiled(None, ROWS.schema) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n ==", "expression"),
        ("absent == 1", "absent"),
        ("__import__('os').system('true')", "cannot hold"),
        ("n == __import__('os')", "cannot hold"),
        ("n + 1 == 2", "cannot hold 'n + 1'"),
        ("1 < n < 3", "cannot hold"),
        ("[x for x in (1,)]", "cannot hold"),
        ("n == (1).real", "cannot hold"),
        ("(" * 500 + "n" + ")" * 500, "is not an expression"),
        ("t > 1", "where"),
        ("n is 5", "cannot hold '5'"),
        ("n < null", "cannot hold 'null'"),
        ("n == -'a'", "cannot hold"),
        ("n in [1, 'a']", "n is int64, but 'a' is text"),
        ("n > 'a'", "n is int64"),
        ("n == true", "n is int64"),
        ("t", "t is large_string"),
        ("n == t", "n is int64, but t is large_string"),
    ],
)
def test_invalid_expressions_are_rejected(text: str, message: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        compiled(text, ROWS.schema)
    assert message in str(raised.value)


CELLS = {
    "n": ["2", "10", "x", None, "1.5"],
    "m": ["10", "9", "x", "a", "1.50"],
    "ok": ["true", "False", "?", None, "TRUE"],
}
SPELLED_ROWS = pa.table(
    [pa.array(cells) for cells in CELLS.values()],
    schema=pa.schema([pa.field(name, pa.string(), metadata=SPELLED) for name in CELLS]),
)


@pytest.mark.parametrize(
    ("text", "rows", "unread"),
    [
        ("n > 1.7", [0, 1, 2], [2]),
        ("n == 2", [0, 2], [2]),
        ("n == '2'", [0], []),
        ("n < '2'", [1, 4], []),
        ("n in [2, 1.5]", [0, 2, 4], [2]),
        ("n in ['2', 'x']", [0, 2], []),
        ("n not in [2, 10]", [2, 4], [2]),
        ("n == null", [3], []),
        ("ok", [0, 2, 4], [2]),
        ("not ok", [1, 2], [2]),
        ("ok == false", [1, 2], [2]),
        # Numbers where both are, else text.
        ("n < m", [0], []),
        ("n == m", [2, 4], []),
        # Another part of the expression decides.
        ("n > 1.7 or m == 'x'", [0, 1, 2], []),
        ("n > 1.7 and m == '10'", [0], []),
    ],
)
def test_spelled_text_is_compared_in_the_type_of_the_other_side(text: str, rows: list[int], unread: list[int]) -> None:
    where = compiled(text, SPELLED_ROWS.schema)
    assert where is not None
    found = filtered(Window(SPELLED_ROWS), where)

    assert found.table.to_pylist() == [SPELLED_ROWS.to_pylist()[row] for row in rows]
    assert [rows[place] for place in found.faults] == unread


def test_large_whole_numbers_of_text_are_compared_exactly() -> None:
    schema = pa.schema([pa.field("id", pa.string(), metadata=SPELLED)])
    table = pa.table([[str(2**53 + 1), str(2**53), "0.5"]], schema=schema)
    where = compiled(f"id == {2**53 + 1}", schema)
    assert where is not None

    assert filtered(Window(table), where).table["id"].to_pylist() == [str(2**53 + 1)]


@pytest.mark.parametrize(
    ("text", "rows"), [("id > 1.5", [0, 2]), ("id in [0.5, 9007199254740993]", [0, 1]), ("id < 1e300", [0, 1, 2])]
)
@pytest.mark.parametrize("spelled", [True, False])
def test_a_fraction_compares_with_large_whole_numbers(text: str, rows: list[int], spelled: bool) -> None:
    cells: list[Any] = [2**53 + 1, 0.5, 2**53] if spelled else [2**53 + 1, 1, 2**53]
    field = pa.field("id", pa.string(), metadata=SPELLED) if spelled else pa.field("id", pa.int64())
    table = pa.table([[str(cell) if spelled else cell for cell in cells]], schema=pa.schema([field]))
    where = compiled(text, table.schema)
    assert where is not None
    wanted = rows if spelled or "in" not in text else [0]

    assert filtered(Window(table), where).table["id"].to_pylist() == [table["id"][row].as_py() for row in wanted]


def test_a_time_is_compared_with_text_of_its_own_kind() -> None:
    schema = pa.schema([("t", pa.timestamp("ms", "Europe/Berlin")), ("d", pa.date32())])
    table = pa.table([[0, 1000], [0, -1]], schema=schema)
    where = compiled("t >= '1970-01-01T01:00:01+01:00' and d < '1970-01-01'", schema)
    assert where is not None

    assert where.select(table)[0].so.tolist() == [False, True]
    with pytest.raises(InvalidSettings, match="offset"):
        compiled("t > '1970-01-01'", schema)
