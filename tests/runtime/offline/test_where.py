"""Which rows an expression means."""

from typing import Any

import pyarrow as pa
import pytest

from shoal_runtime.offline.errors import WrongSettings
from shoal_runtime.offline.where import columns_of, compiled

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
def test_an_expression_means_these_rows(text: str, rows: list[Any]) -> None:
    where = compiled(text, ROWS.schema)
    assert where is not None
    assert ROWS.filter(where.expression).column("n").to_pylist() == rows


def test_the_columns_that_an_expression_names_have_to_be_read() -> None:
    assert columns_of("n > 1 and (t == 'a' or n < 5)", ROWS.schema) == ["n", "t"]
    assert columns_of(None, ROWS.schema) == []
    assert compiled(None, ROWS.schema) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n ==", "is no expression"),
        ("absent == 1", "names absent, and the input has the columns n, t, ok, m"),
        ("__import__('os').system('true')", "cannot hold"),
        ("n == __import__('os')", "cannot hold"),
        ("n + 1 == 2", "cannot hold 'n + 1'"),
        ("1 < n < 3", "cannot hold"),
        ("[x for x in (1,)]", "cannot hold"),
        ("n == (1).real", "cannot hold"),
        ("(" * 500 + "n" + ")" * 500, "is no expression"),
        ("t > 1", "where"),
        ("n is 5", "cannot hold '5'"),
        ("n < null", "cannot hold 'null'"),
        ("n == -'a'", "cannot hold"),
        ("n in [1, 'a']", "cannot be: Could not convert 'a'"),
        (f"n == {10**30}", "cannot be: Python int too large"),
    ],
)
def test_anything_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(WrongSettings) as raised:
        compiled(text, ROWS.schema)
    assert said in str(raised.value)
