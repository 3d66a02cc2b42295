"""Tables and lines in the types of the whole input: each cell keeps its value, or is an error."""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline.json_lines import cells_column
from shoal_runtime.offline.schemas import PARTITION, promoted
from shoal_runtime.offline.windows import Window, cast_table


def window_of(column: Any, kind: pa.DataType) -> Window:
    return cast_table(pa.table({"x": column}), pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.decimal128(5, 2), pa.int64(), pa.decimal128(22, 2)),
        (pa.decimal128(5, 2), pa.int8(), pa.decimal128(5, 2)),
        (pa.decimal128(5, 2), pa.uint64(), pa.decimal128(22, 2)),
        (pa.decimal128(38, 0), pa.decimal128(38, 20), pa.decimal256(58, 20)),
        (pa.decimal128(38, 38), pa.int64(), pa.decimal256(58, 38)),
        (pa.decimal256(76, 0), pa.decimal128(5, 2), None),
        (pa.decimal128(5, 2), pa.float32(), pa.float64()),
        (pa.decimal128(5, 2), pa.string(), None),
        (pa.decimal128(5, 2), pa.bool_(), None),
        (pa.list_(pa.decimal128(5, 2)), pa.list_(pa.float64()), None),
        (pa.list_(pa.decimal128(5, 2)), pa.list_(pa.int8()), pa.list_(pa.decimal128(5, 2))),
    ],
)
def test_a_decimal_and_another_number_have_a_common_type(
    one: pa.DataType, other: pa.DataType, both: pa.DataType | None
) -> None:
    assert [promoted(one, other), promoted(other, one)] == [both, both]


@pytest.mark.parametrize(
    ("column", "kind", "found"),
    [
        (pa.array([2**63 - 1, None]), pa.decimal128(22, 2), [Decimal(2**63 - 1), None]),
        (pa.array([Decimal("0.10"), None], pa.decimal128(3, 2)), pa.float64(), [0.1, None]),
        (pa.array([Decimal("70.13"), Decimal(2**53 + 1)], pa.decimal128(20, 2)), pa.float64(), [70.13, None]),
        (pa.array([Decimal("1.5"), Decimal(2)], pa.decimal128(3, 1)), pa.int64(), [None, 2]),
        (pa.array([2**53 + 1, 2**53, 2**60]), pa.float64(), [None, 2.0**53, 2.0**60]),
        (pa.array([[2**53 + 1], [1, 2], None]), pa.list_(pa.float64()), [None, [1.0, 2.0], None]),
        (pa.array([2**63, 5], pa.uint64()), pa.int64(), [None, 5]),
        (
            pa.array([1, 2**62], pa.timestamp("s")),
            pa.timestamp("ms"),
            [datetime.fromtimestamp(1, UTC).replace(tzinfo=None), None],
        ),
        (pa.array([{"a": 2**53 + 1}, {"a": 1}]), pa.struct([("a", pa.float64())]), [None, {"a": 1.0}]),
        (pa.array([None, "a"]).dictionary_encode(), pa.large_string(), [None, "a"]),
        (pa.chunked_array([["1"], ["x", None]]), pa.int64(), [1, None, None]),
    ],
)
def test_a_cell_keeps_its_value_or_is_an_error(column: Any, kind: pa.DataType, found: Sequence[Any]) -> None:
    try:
        window = window_of(column, kind)
    except (OverflowError, ValueError):
        pytest.fail("a cell that does not fit is no fault of the whole shard")

    assert window.table["x"].to_pylist() == found
    assert set(window.faults) == {row for row, cell in enumerate(found) if cell is None and column[row].is_valid}


def test_nanoseconds_are_kept_beside_a_cell_that_does_not_fit() -> None:
    column = pa.array([1, 2**62], pa.timestamp("us"))
    window = window_of(column, pa.timestamp("ns"))

    assert window.table["x"].cast(pa.int64()).to_pylist() == [1000, None]
    assert set(window.faults) == {1}


NUMBERS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(2**53 - 2, 2**53 + 2),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(38, 3): st.decimals(-(10**30), 10**30, places=3),
    pa.decimal256(60, 1): st.decimals(-(10**50), 10**50, places=1),
    pa.uint64(): st.integers(0, 2**64 - 1),
}


@given(st.sampled_from([*NUMBERS]), st.sampled_from([*NUMBERS]), st.data())
def test_a_number_in_the_common_type_is_unchanged(one: pa.DataType, other: pa.DataType, data: st.DataObject) -> None:
    cells = data.draw(st.lists(NUMBERS[one], min_size=1, max_size=4))
    both = promoted(one, other)
    assert both is not None
    window = window_of(pa.array(cells, one), both)

    for row, (cell, found) in enumerate(zip(cells, window.table["x"].to_pylist(), strict=True)):
        if row in window.faults:
            assert found is None
        else:
            # A float that is a decimal's nearest is written alike, though it is not the same number to the last digit.
            assert found == cell or Decimal(str(found)) == Decimal(str(cell))


def test_a_missing_column_is_null_and_the_others_keep_their_order() -> None:
    schema = pa.schema([("y", pa.string()), ("x", pa.int64())])
    window = cast_table(pa.table({"x": [1, 2], "z": [0, 0]}), schema)

    assert window.table.schema == schema
    assert window.table.to_pylist() == [{"y": None, "x": 1}, {"y": None, "x": 2}]


@pytest.mark.parametrize(
    ("own", "path", "kind", "value", "wrong"),
    [
        (None, "x=1/a", pa.int64(), 1, set()),
        (pa.array([1, 2, None]), "x=1/a", pa.int64(), 1, {1}),
        (pa.array([1.0, 1.5, None]), "x=1/a", pa.int64(), 1, {1}),
        (pa.array(["1", "01", "x"]), "x=1/a", pa.int64(), 1, {2}),
        (pa.array([1, 2, None]), "x=a/a", pa.string(), "a", {0, 1}),
        (
            pa.array([datetime(2024, 1, 1, tzinfo=UTC).date(), None, None]),
            "x=2024-01-01/a",
            pa.string(),
            "2024-01-01",
            set(),
        ),
        (pa.array([[1], None, None]), "x=1/a", pa.int64(), 1, {0}),
        (pa.array([None, None, None]), "x=__HIVE_DEFAULT_PARTITION__/a", pa.int64(), None, set()),
    ],
)
def test_a_partition_has_the_path_value_and_a_different_cell_is_an_error(
    own: Any, path: str, kind: pa.DataType, value: Any, wrong: set[int]
) -> None:
    table = pa.table({"id": [1, 2, 3]} if own is None else {"id": [1, 2, 3], "x": own})
    window = cast_table(table, pa.schema([pa.field("x", kind, metadata=PARTITION)]), path)

    assert window.table["x"].to_pylist() == [value] * 3
    assert set(window.faults) == wrong


@pytest.mark.parametrize(
    ("cells", "kind", "wrong"),
    [
        ([1, None, 2**63 - 1], pa.int64(), set()),
        ([1, 2**63, -(2**70)], pa.int64(), {1, 2}),
        ([1.0, 1.5, True], pa.int64(), {1, 2}),
        ([2**53, 2**53 + 1, 0.5], pa.float64(), {1}),
        ([True, 0.5, "x"], pa.float64(), {0, 2}),
        ([[1, None], [True], "x"], pa.list_(pa.float64()), {1, 2}),
        ([{"a": 1}, {"a": 1, "b": None}, {"a": 1, "b": 2}], pa.struct([("a", pa.int64())]), {2}),
        ([{"a": 0.5}, {"a": True}, [1]], pa.struct([("a", pa.float64())]), {1, 2}),
        ([[{"a": 1, "c": 0}], [{"a": 1}], [None]], pa.list_(pa.struct([("a", pa.int64())])), {0}),
        (["a", 1, None], pa.string(), {1}),
    ],
)
def test_a_json_cell_keeps_its_value_or_is_an_error(cells: list[Any], kind: pa.DataType, wrong: set[int]) -> None:
    faults: dict[int, str] = {}
    column = cells_column([{"x": cell} for cell in cells], pa.field("x", kind), faults)

    assert set(faults) == wrong
    kept = [None if row in wrong else cell for row, cell in enumerate(cells)]
    assert column.to_pylist() == [{"a": cell["a"]} if isinstance(cell, dict) else cell for cell in kept]


def test_a_partition_takes_precedence_over_keys_of_json_lines() -> None:
    faults: dict[int, str] = {}
    rows: list[dict[str, Any]] = [{"n": 1}, {}, {"n": "2"}]
    column = cells_column(rows, pa.field("n", pa.int64(), metadata=PARTITION), faults, "n=1/rows.jsonl")

    assert column.to_pylist() == [1, 1, 1]
    assert set(faults) == {2}
