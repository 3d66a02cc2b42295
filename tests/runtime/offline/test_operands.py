"""Comparisons are exact: of any two types of numbers, of times, and of text that spells numbers."""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.row_filter import compiled
from shoal_runtime.offline.schemas import SPELLED

SIGNS: dict[str, Callable[[Any, Any], bool]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
LARGE = st.sampled_from([2**31, 2**53, 2**63]).flatmap(lambda at: st.integers(at - 2, at + 2))
WHOLES = st.integers(-3, 3) | LARGE | LARGE.map(lambda each: -each)
FLOATS = st.floats(allow_nan=False) | WHOLES.map(float)
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): WHOLES.filter(lambda each: -(2**63) <= each < 2**63),
    pa.uint64(): WHOLES.filter(lambda each: each >= 0),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): FLOATS,
    pa.float32(): st.floats(allow_nan=False, width=32),
}
COLUMNS = st.sampled_from([*KINDS]).flatmap(
    lambda kind: st.lists(st.none() | KINDS[kind], min_size=1, max_size=4).map(lambda cells: pa.array(cells, kind))
)


def truth(text: str, columns: Mapping[str, pa.Array], spelled: Collection[str] = ()) -> list[bool | None]:
    """Return an expression's truth by row; columns named in ``spelled`` hold text that may spell numbers."""
    fields = [
        pa.field(name, column.type, metadata=SPELLED if name in spelled else None) for name, column in columns.items()
    ]
    table = pa.table([*columns.values()], pa.schema(fields))
    where = compiled(text, table.schema)
    assert where is not None
    (so, known), _ = where.select(table)
    return [bool(each) if certain else None for each, certain in zip(so, known, strict=True)]


def compared(column: pa.Array, sign: str, value: Any, *, spelled: bool = False) -> list[bool | None]:
    literal = repr(value).replace("inf", "1e400")
    return truth(f"x {sign} {literal}", {"x": column}, ["x"] if spelled else [])


def paired(one: pa.Array, sign: str, other: pa.Array, spelled: Collection[str] = ()) -> list[bool | None]:
    return truth(f"x {sign} y", {"x": one, "y": other}, spelled)


@given(COLUMNS, st.sampled_from([*SIGNS]), WHOLES | FLOATS)
def test_a_number_compares_with_another_as_python_compares_them(column: pa.Array, sign: str, value: float) -> None:
    wanted = [None if cell is None else SIGNS[sign](cell, value) for cell in column.to_pylist()]

    assert compared(column, sign, value) == wanted


@given(COLUMNS, st.sampled_from([*SIGNS]), st.data())
def test_two_columns_of_numbers_compare_as_python_compares_them(
    column: pa.Array, sign: str, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from([*KINDS]))
    other = pa.array(data.draw(st.lists(st.none() | KINDS[kind], min_size=len(column), max_size=len(column))), kind)
    pairs = zip(column.to_pylist(), other.to_pylist(), strict=True)
    wanted = [None if one is None or two is None else SIGNS[sign](one, two) for one, two in pairs]

    assert paired(column, sign, other) == wanted


@given(
    st.lists(WHOLES | st.decimals(allow_nan=False, allow_infinity=False, places=3), min_size=1),
    st.sampled_from([*SIGNS]),
    WHOLES,
)
def test_text_compares_with_a_number_as_the_number_that_it_spells(cells: list[Any], sign: str, value: int) -> None:
    column = pa.array([str(cell) for cell in cells])
    wanted = [SIGNS[sign](Fraction(str(cell)), value) for cell in cells]

    assert compared(column, sign, value, spelled=True) == wanted


@given(
    st.lists(st.decimals(-10, 10, places=2) | st.sampled_from([Decimal("0.1"), Decimal("0.10000001")]), min_size=1),
    st.sampled_from([*SIGNS]),
    st.decimals(-10, 10, places=2) | st.sampled_from([Decimal("0.10000001"), Decimal("0.1000000000000001")]),
)
def test_fractions_of_text_compare_with_a_fraction_as_they_are_written(
    cells: list[Decimal], sign: str, value: Decimal
) -> None:
    wanted = [SIGNS[sign](cell, value) for cell in cells]

    assert compared(pa.array([str(cell) for cell in cells]), sign, float(value), spelled=True) == wanted


@pytest.mark.parametrize(
    ("column", "spelled", "sign", "value", "found"),
    [
        (pa.array([2**53 + 1, 1]), False, ">", 1.5, [True, False]),
        (pa.array([str(2**53 + 1), "1"]), True, ">", 1.5, [True, False]),
        (pa.array([str(2**53 + 1), "1.5"]), True, "==", 2**53, [False, False]),
        (pa.array([0.1, float("nan")]), False, "==", 0.1, [True, False]),
        (pa.array([0.1, float("nan")]), False, "!=", 0.1, [False, True]),
        (pa.array(["0.1", "nan", "inf", "0.10"]), True, "<=", 0.1, [True, False, False, True]),
        (pa.array([Decimal("0.10"), None], pa.decimal128(38, 2)), False, "==", 0.1, [True, None]),
        (pa.array([Decimal(10**30 + 1)], pa.decimal256(60, 0)), False, ">", 10**30, [True]),
        (pa.array([1, 2]), False, "<", 10**30, [True, True]),
        (pa.array([1, 2], pa.uint8()), False, ">=", -1, [True, True]),
        (pa.array([1, None]), False, "!=", 10**30, [True, None]),
        (pa.array([1, 2]), False, "<", float("inf"), [True, True]),
        (pa.array(["b", None]).dictionary_encode(), False, ">", "a", [True, None]),
        (pa.array([b"b"]), False, "==", "b", [True]),
        (pa.array([True, None]), False, "==", True, [True, None]),
        (pa.array([None, None]), False, "==", 5, [None, None]),
    ],
)
def test_a_cell_compares_by_its_value(column: pa.Array, spelled: bool, sign: str, value: Any, found: list[Any]) -> None:
    assert compared(column, sign, value, spelled=spelled) == found


BERLIN = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("column", "value", "equal", "less"),
    [
        (pa.array([date(1969, 12, 31)]), "1969-12-31", True, False),
        (pa.array([date(1969, 12, 31)]), "1969-12-31T00:00:00.000000001", False, True),
        (pa.array([date(1969, 12, 31)], pa.date64()), "1969-12-31", True, False),
        (pa.array([-1], pa.timestamp("ns")), "1969-12-31T23:59:59.999999999", True, False),
        (pa.array([-1], pa.timestamp("s")), "1969-12-31 23:59:59.5", False, True),
        (pa.array([datetime(2024, 5, 1, tzinfo=UTC)]), "2024-05-01T02:00:00+02:00", True, False),
        (pa.array([0], pa.timestamp("us", "America/New_York")), "1970-01-01T00:00:00Z", True, False),
        (pa.array([0], pa.timestamp("s")), "9999-01-01", False, True),
    ],
)
def test_a_time_compares_with_text_as_an_instant(column: pa.Array, value: str, equal: bool, less: bool) -> None:
    assert [compared(column, sign, value) for sign in ("==", "<")] == [[equal], [less]]


def test_times_of_columns_compare_as_instants_whatever_their_units_and_zones() -> None:
    one = pa.array([0, 1, None], pa.timestamp("s", "Europe/Berlin"))
    other = pa.array([0, 999_999_999, 0], pa.timestamp("ns", "UTC"))
    days = pa.array([0, 1, 2], pa.date32())

    assert paired(one, "==", other) == [True, False, None]
    assert paired(one, ">", other) == [False, True, None]
    assert paired(days, "==", pa.array([0, 1, 2], pa.timestamp("s"))) == [True, False, False]
    assert paired(days, "<", pa.array([2**62, -(2**62), 2 * 86_400], pa.timestamp("s"))) == [True, False, False]
    with pytest.raises(InvalidSettings, match="time zone"):
        paired(one, "==", days)


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time64("ns"), pa.duration("us")])
def test_other_times_compare_with_their_own_type_only(kind: pa.DataType) -> None:
    assert paired(pa.array([1, None, 3], kind), "<", pa.array([2, 2, 2], kind)) == [True, None, False]
    with pytest.raises(InvalidSettings, match="is text"):
        compared(pa.array([1], kind), "==", "00:00:01")


def test_columns_without_order_are_rejected() -> None:
    lists = pa.array([[1]])
    with pytest.raises(InvalidSettings, match="no order"):
        paired(lists, "==", lists)

    assert truth("x == null", {"x": lists}) == [False]
    assert paired(lists, "==", pa.nulls(1)) == [None]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (pa.array([0], pa.timestamp("s", "UTC")), "1970-01-01T00:00:00", "offset"),
        (pa.array([0], pa.timestamp("s")), "1970-01-01T00:00:00Z", "offset"),
        (pa.array([0], pa.timestamp("s")), "yesterday", "ISO 8601"),
        (pa.array([0], pa.date32()), "2024-02-30", "ISO 8601"),
        (pa.array([0], pa.date32()), 5, "number"),
        (pa.array([1]), "1", "text"),
        (pa.array([1]), True, "truth value"),
        (pa.array(["a"]), 1, "number"),
        (pa.array([[1]]), 1, "number"),
    ],
)
def test_types_that_do_not_compare_are_rejected(column: pa.Array, value: Any, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        compared(column, "==", value)


def test_columns_that_do_not_compare_are_rejected_but_nulls_compare_with_all() -> None:
    numbers = pa.array([1])
    with pytest.raises(InvalidSettings, match="x is int64, but y is large_string"):
        paired(numbers, "==", pa.array(["1"]))

    assert paired(numbers, "==", pa.nulls(1)) == [None]
    assert paired(pa.nulls(1), "<", pa.nulls(1)) == [None]
    assert truth("x < 'a' or x == 1 or x or x in ['a', 1.5, true]", {"x": pa.nulls(1)}) == [None]
    assert paired(numbers, "==", pa.array(["1.0"]), ["y"]) == [True]


def test_csv_text_is_compared_with_truth_values() -> None:
    assert paired(pa.array(["TRUE", "false", "x"]), "==", pa.array([True, True, True]), ["x"]) == [True, False, None]


def test_text_that_is_no_number_is_reported_beside_a_null() -> None:
    schema = pa.schema([pa.field("x", pa.string(), metadata=SPELLED), pa.field("y", pa.int64())])
    where = compiled("x == y", schema)
    assert where is not None
    assert list(where.select(pa.table([["a", "1"], [None, 1]], schema))[1]) == [0]


def test_a_decimal_fraction_equals_the_binary_one_nearest_to_it() -> None:
    binary = pa.array([0.1, 2.0**53])

    assert paired(binary, "==", pa.array([Decimal("0.1"), Decimal(2**53 + 1)], pa.decimal128(38, 1))) == [True, False]
    assert paired(binary, "==", pa.array(["0.10", str(2**53 + 1)]), ["y"]) == [True, False]


def test_nan_is_text_when_two_text_columns_are_compared() -> None:
    texts, others = pa.array(["nan", "1.0", "x", ""]), pa.array(["nan", "1", "x", ""])

    assert paired(texts, "==", others, ["x", "y"]) == [True, True, True, True]


def test_bytes_that_are_not_utf_8_are_compared() -> None:
    invalid = pa.array([b"\xff", b"a"]).cast(pa.binary()).view(pa.string())

    assert compared(invalid, "==", "a") == [False, True]


@pytest.mark.parametrize(
    ("column", "values", "found"),
    [
        (pa.array([2**53 + 1, 1, None]), [2**53, 1.0], [False, True, None]),
        (pa.array(["a", "b", None]), ["a", "c"], [True, False, None]),
        (pa.array([0.0, -0.0]), [0], [True, True]),
        (pa.array([1, None]), [], [False, None]),
        (pa.array([1, None]), [None], [False, None]),
        (pa.array([date(2024, 5, 1)]), ["2024-05-01"], [True]),
    ],
)
def test_a_cell_is_among_values_that_equal_it(column: pa.Array, values: list[Any], found: list[Any]) -> None:
    written = ", ".join("null" if each is None else repr(each) for each in values)
    assert truth(f"x in [{written}]", {"x": column}) == found
