"""Columns as the model takes them: values are unchanged, or errors of their rows."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.inputs import InputRows, batch_of_rows, make_rows
from shoal_runtime.offline.mapping import check_kinds, mapped_columns
from shoal_runtime.offline.schemas import SPELLED, plain
from shoal_runtime.offline.windows import Window
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.wire.columns import NULL

X = TensorSpec("x", "FP32", [-1])
PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""As Hugging Face's datasets write pictures and sounds."""


def rows_of(values: Any, spec: TensorSpec, kind: Any = None, faults: dict[int, str] | None = None) -> InputRows:
    return make_rows(Window(pa.table({"c": pa.array(values, kind)}), faults or {}), [spec], {spec.name: ["c"]})


def all_of(rows: InputRows, *specs: TensorSpec) -> dict[str, Any]:
    return {name: array.tolist() for name, array in batch_of_rows(rows, rows.good, specs).items()}


@pytest.mark.parametrize(
    ("values", "kind", "spec", "taken"),
    [
        ([1, 2], pa.int64(), X, [1.0, 2.0]),
        ([1.5, 2.5], pa.float64(), X, [1.5, 2.5]),
        ([True, False], pa.bool_(), TensorSpec("x", "BOOL", [-1]), [True, False]),
        ([1.0, 2.0], pa.float64(), TensorSpec("x", "INT32", [-1]), [1, 2]),
        ([Decimal("1.5")], pa.decimal128(5, 2), X, [1.5]),
        ([1, 2], pa.int8(), TensorSpec("x", "FP32", [-1, 1]), [[1.0], [2.0]]),
        ([[1, 2], [3, 4]], pa.list_(pa.int64()), TensorSpec("x", "FP32", [-1, 2]), [[1.0, 2.0], [3.0, 4.0]]),
        ([[1, 2]], pa.list_(pa.float32(), 2), TensorSpec("x", "FP32", [-1, 2]), [[1.0, 2.0]]),
        ([[1, 2]], pa.large_list(pa.float32()), TensorSpec("x", "FP32", [-1, -1]), [[1.0, 2.0]]),
        ([[[1], [2]]], pa.list_(pa.list_(pa.float32())), TensorSpec("x", "FP32", [-1, 2, 1]), [[[1.0], [2.0]]]),
        (["a", "ü"], pa.string(), TensorSpec("x", "BYTES", [-1]), [b"a", "ü".encode()]),
        ([b"a"], pa.binary(), TensorSpec("x", "BYTES", [-1, 1]), [[b"a"]]),
        (["a"], pa.large_string(), TensorSpec("x", "BYTES", [-1]), [b"a"]),
        ([{"a": [1]}], None, TensorSpec("x", "BYTES", [-1], content_type="application/json"), [b'{"a":[1]}']),
        ([{"bytes": b"a", "path": "a.png"}], PICTURE, TensorSpec("x", "BYTES", [-1]), [b"a"]),
        (
            [{"bytes": b"a", "path": None}],
            PICTURE,
            TensorSpec("x", "BYTES", [-1], content_type="application/json"),
            [b'{"bytes":"b\'a\'","path":null}'],
        ),
        ([float("nan"), float("inf")], pa.float64(), X, [pytest.approx(float("nan"), nan_ok=True), float("inf")]),
    ],
)
def test_a_column_is_converted_for_the_model(values: Any, kind: Any, spec: TensorSpec, taken: Any) -> None:
    rows = rows_of(values, spec, kind)

    assert rows.errors == {}
    assert all_of(rows, spec) == {"x": taken}


@pytest.mark.parametrize(
    ("values", "kind", "spec", "message"),
    [
        ([1.0, 1.5], pa.float64(), TensorSpec("x", "INT32", [-1]), {1: "x: 1.5 does not fit INT32"}),
        ([1, 300], pa.int64(), TensorSpec("x", "UINT8", [-1]), {1: "x: 300 does not fit UINT8"}),
        ([1, -1], pa.int64(), TensorSpec("x", "UINT64", [-1]), {1: "x: -1 does not fit UINT64"}),
        ([1.0, 1e300], pa.float64(), X, {1: "x: 1e+300 does not fit FP32"}),
        ([1.0, float("nan")], pa.float64(), TensorSpec("x", "INT64", [-1]), {1: "x: nan does not fit INT64"}),
        ([1.0, None], pa.float64(), X, {1: "input 'x' does not accept null (column 'c')"}),
        (["a", None], pa.string(), TensorSpec("x", "BYTES", [-1]), {1: "input 'x' does not accept null (column 'c')"}),
        (
            [{"bytes": b"a", "path": None}, {"bytes": None, "path": "a.png"}, None],
            PICTURE,
            TensorSpec("x", "BYTES", [-1]),
            {1: "input 'x' does not accept null (column 'c')", 2: "input 'x' does not accept null (column 'c')"},
        ),
        (
            [[1.0, 2.0], [1.0]],
            None,
            TensorSpec("x", "FP32", [-1, 2]),
            {1: "x: a row has the shape [1], expected [2]"},
        ),
        (
            [[1.0], [None]],
            pa.list_(pa.float64()),
            TensorSpec("x", "FP32", [-1, 1]),
            {1: "x: it holds nulls, or lists of different lengths"},
        ),
        (
            [[1.0], None],
            pa.list_(pa.float64()),
            TensorSpec("x", "FP32", [-1, 1]),
            {1: "input 'x' does not accept null (column 'c')"},
        ),
        (
            [1, Decimal(2**63)],
            pa.decimal128(20, 0),
            TensorSpec("x", "INT64", [-1]),
            {1: "x: 9223372036854775808 does not fit INT64"},
        ),
        (
            [[Decimal(1)], [None]],
            pa.list_(pa.decimal128(5, 0)),
            TensorSpec("x", "FP32", [-1, 1]),
            {1: "x: it holds nulls, or lists of different lengths"},
        ),
        ([[1.0], [1e300]], None, TensorSpec("x", "FP32", [-1, 1]), {1: "x: 1e+300 does not fit FP32"}),
    ],
)
def test_a_cell_that_does_not_fit_is_an_error(values: Any, kind: Any, spec: TensorSpec, message: Any) -> None:
    rows = rows_of(values, spec, kind)

    assert rows.errors == message
    assert rows.good.tolist() == [0]
    assert len(batch_of_rows(rows, rows.good, [spec])["x"]) == 1


@pytest.mark.parametrize("kind", [pa.uint64(), pa.int64(), pa.decimal128(20, 0)])
def test_integers_in_ragged_lists_are_exact(kind: pa.DataType) -> None:
    most = {pa.uint64(): 2**64 - 1, pa.int64(): 2**63 - 1}.get(kind, 2**53 - 1)
    rows = rows_of([[1, most], [3]], TensorSpec("x", "UINT64", [-1, -1]), pa.list_(kind))

    assert rows.errors == {}
    assert [each.tolist() for each in rows.values["x"]] == [[1, most], [3]]


def test_an_unreadable_row_is_not_sent_to_the_model() -> None:
    rows = rows_of([1.0, 2.0], X, faults={0: "the line is not JSON"})

    assert rows.errors == {0: "the line is not JSON"}
    assert rows.good.tolist() == [1]


@pytest.mark.parametrize(
    ("values", "spec", "message"),
    [
        (["a"], X, "x takes numbers, but the column x holds string"),
        ([["a"]], X, "x takes numbers, but the column x holds string"),
        ([b"\xff"], X, "x takes numbers, but the column x holds binary"),
        ([1.0], TensorSpec("x", "BYTES", [-1]), "x takes text or bytes, but the column x holds double"),
        ([{"a": 1}], X, "x takes numbers, but the column x holds struct<a: int64>"),
        ([{"bytes": b"a", "path": "a"}], X, "x takes numbers, but the column x holds struct"),
        (
            [{"bytes": b"a", "other": "a"}],
            TensorSpec("x", "BYTES", [-1]),
            "x takes text or bytes, but the column x holds",
        ),
        (
            [{"bytes": "a", "path": "a"}],
            TensorSpec("x", "BYTES", [-1]),
            "x takes text or bytes, but the column x holds",
        ),
    ],
)
def test_a_column_of_another_type_is_rejected(values: Any, spec: TensorSpec, message: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        check_kinds([spec], {"x": ["x"]}, pa.table({"x": values}).schema)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    "values", [["a"], [b"\xff"], pa.array(["a"]).dictionary_encode(), pa.array(["a"], pa.large_string())]
)
def test_text_and_bytes_are_accepted_in_each_storage_form(values: Any) -> None:
    spec = TensorSpec("x", "BYTES", [-1])

    check_kinds([spec], {"x": ["x"]}, pa.table({"x": values}).schema)


def test_numbers_of_several_columns_make_one_row() -> None:
    spec = TensorSpec("x", "FP32", [-1, 2])
    window = Window(pa.table({"a": [1, 2, None], "b": [3.5, 4.5, 5.5]}))
    rows = make_rows(window, [spec], {"x": ["a", "b"]})

    assert rows.errors == {2: "input 'x' does not accept null (column 'a')"}
    assert all_of(rows, spec) == {"x": [[1.0, 3.5], [2.0, 4.5]]}


IDS = TensorSpec("ids", "INT64", [-1, -1], pad_axis=1, pad_value=9, pad_mask="mask")
MASK = TensorSpec("mask", "INT32", [-1, -1])


def test_rows_of_different_lengths_are_padded_and_masked() -> None:
    window = Window(pa.table({"ids": [[1], [1, 2, 3], [4, 5]]}))
    rows = make_rows(window, [IDS, MASK], {"ids": ["ids"]})

    assert rows.sizes.tolist() == [1, 3, 2]
    assert len(set(rows.keys)) == 1
    taken = batch_of_rows(rows, np.array([0, 2]), [IDS, MASK])
    assert taken["ids"].tolist() == [[1, 9], [4, 5]]
    assert taken["mask"].tolist() == [[1, 0], [1, 1]]
    assert taken["mask"].dtype == np.int32


def test_rows_of_incompatible_shapes_have_different_keys() -> None:
    spec = TensorSpec("x", "FP32", [-1, -1])
    rows = make_rows(Window(pa.table({"x": [[1.0], [1.0, 2.0], [3.0]]})), [spec], {"x": ["x"]})

    assert [rows.keys[0] == rows.keys[row] for row in (1, 2)] == [False, True]


def test_the_batch_dimension_is_where_the_model_has_it() -> None:
    spec = TensorSpec("x", "FP32", [3, -1], batch_dim=1)
    rows = rows_of([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], spec)

    assert batch_of_rows(rows, rows.good, [spec])["x"].shape == (3, 2)


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=5), min_size=1, max_size=8), st.data())
def test_ragged_rows_are_unchanged(values: list[list[float]], data: st.DataObject) -> None:
    spec = TensorSpec("x", "FP32", [-1, -1], pad_axis=1)
    rows = make_rows(Window(pa.table({"x": pa.array(values, pa.list_(pa.float32()))})), [spec], {"x": ["x"]})
    chosen = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=5)))

    taken = batch_of_rows(rows, chosen, [spec])["x"]
    assert [array.tolist()[: len(values[row])] for array, row in zip(taken, chosen, strict=True)] == [
        values[row] for row in chosen
    ]


SCHEMA = pa.schema([("x", pa.float32()), ("y", pa.float32()), ("picture", pa.binary())])


@pytest.mark.parametrize(
    ("specs", "asked", "found"),
    [
        ([X], {}, {"x": ["x"]}),
        ([X], {"x": "y"}, {"x": ["y"]}),
        ([X], {"x": "x, y"}, {"x": ["x", "y"]}),
        ([TensorSpec("image", "BYTES", [-1])], {}, {"image": ["picture"]}),
        ([X, TensorSpec("z", "FP32", [-1], optional=True)], {}, {"x": ["x"]}),
    ],
)
def test_inputs_are_matched_with_columns(specs: Any, asked: Any, found: Any) -> None:
    assert mapped_columns(specs, asked, SCHEMA) == found


def test_the_one_column_of_files_beside_their_paths_is_found() -> None:
    schema = pa.schema([("label", pa.int64()), ("image", PICTURE)])

    assert mapped_columns([TensorSpec("picture", "BYTES", [-1])], {}, schema) == {"picture": ["image"]}


@pytest.mark.parametrize(
    ("specs", "asked", "message"),
    [
        ([X], {"z": "x"}, "no input z"),
        ([X], {"x": "absent"}, "no column absent. The input has the columns x, y, picture"),
        ([TensorSpec("w", "FP32", [-1])], {}, "--columns w=COLUMN"),
    ],
)
def test_inputs_without_a_column_are_named(specs: Any, asked: Any, message: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        mapped_columns(specs, asked, SCHEMA)
    assert message in str(raised.value)


def test_the_number_of_columns_matches_the_row() -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.float64())])
    check_kinds([TensorSpec("x", "FP32", [-1, 2])], {"x": ["a", "b"]}, schema)
    check_kinds([TensorSpec("x", "FP32", [-1, -1])], {"x": ["a", "b"]}, schema)
    with pytest.raises(InvalidSettings, match=r"\[16\], but 2 columns"):
        check_kinds([TensorSpec("x", "FP32", [-1, 16])], {"x": ["a", "b"]}, schema)


def spelled(cells: list[str | None], spec: TensorSpec) -> tuple[Any, Mapping[int, str]]:
    """Return what a model is given of the cells of a CSV column, and the errors."""
    schema = pa.schema([pa.field("c", pa.string(), metadata=SPELLED)])
    rows = make_rows(Window(pa.table([pa.array(cells, pa.string())], schema=schema)), [spec], {spec.name: ["c"]})
    return all_of(rows, spec)[spec.name], rows.errors


@pytest.mark.parametrize(
    ("datatype", "cells", "taken"),
    [
        ("FP64", ["1", " 1.5 ", "+2", "-1e3", ".5", "5.", "inf"], [1.0, 1.5, 2.0, -1000.0, 0.5, 5.0, float("inf")]),
        ("FP64", [str(2**60), "9007199254740993.0", "1e300"], [2.0**60, 2.0**53, 1e300]),
        ("INT64", ["9007199254740993", "1.0", "1e3", "-7"], [9007199254740993, 1, 1000, -7]),
        ("UINT64", [str(2**64 - 1), "0"], [2**64 - 1, 0]),
        ("INT8", ["127", "-128.0"], [127, -128]),
        ("FP64", ["True", " false", "0.5"], [1.0, 0.0, 0.5]),
        ("INT64", ["TRUE", "False", "7"], [1, 0, 7]),
        ("BOOL", ["true", "False", " TRUE"], [True, False, True]),
        ("BYTES", ["01234", "1.50", "NA"], [b"01234", b"1.50", b"NA"]),
    ],
)
def test_text_of_csv_is_what_it_spells(datatype: str, cells: list[str | None], taken: list[Any]) -> None:
    assert spelled(cells, TensorSpec("x", datatype, [-1])) == (taken, {})


@pytest.mark.parametrize(
    ("datatype", "cell"),
    [
        *(("FP64", cell) for cell in ("abc", "yes", "1e400", "1_000", "1,5", "0x1", "\u0661", None, "NA", "", " ")),
        *(
            ("FP64", cell)
            for cell in ("null", "N/A", "#N/A", str(2**53 + 1), str(-(2**64) - 1), "1e99999999999999999999")
        ),
        *(("FP32", cell) for cell in ("1e39", str(2**53 + 1))),
        *(("INT64", cell) for cell in ("1.5", "abc", "9223372036854775808", "1e400", "inf", "truth", "null", "nan")),
        *(("INT64", cell) for cell in ("0x10", "1e99999999999", "0." + "9" * 40, "9" * 5000)),
        *(("UINT64", cell) for cell in ("-1", str(2**64))),
        *(("INT8", cell) for cell in ("128", "1.1")),
        *(("BOOL", cell) for cell in ("1", "0", "yes", None)),
        *(("BYTES", cell) for cell in (None,)),
    ],
)
def test_csv_text_of_another_type_is_an_error_of_its_row(datatype: str, cell: str | None) -> None:
    good = {"BOOL": "true"}.get(datatype, "1")
    taken, errors = spelled([good, cell], TensorSpec("x", datatype, [-1]))

    assert len(taken) == 1
    assert set(errors) == {1}


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)), min_size=1, max_size=5))
def test_a_written_number_is_read_exactly(numbers: list[float]) -> None:
    whole = [each for each in numbers if isinstance(each, int)] or [0]
    lost = {row for row, each in enumerate(numbers) if float(each) != each}

    taken, errors = spelled([repr(each) for each in numbers], TensorSpec("x", "FP64", [-1]))
    assert set(errors) == lost
    assert taken == [float(each) for row, each in enumerate(numbers) if row not in lost]
    assert spelled([repr(each) for each in whole], TensorSpec("x", "INT64", [-1])) == (whole, {})


def test_a_large_whole_number_is_exact_beside_a_fraction() -> None:
    taken, errors = spelled(["9007199254740993", "1.5", "-9007199254740993"], TensorSpec("x", "INT64", [-1]))

    assert taken == [9007199254740993, -9007199254740993]
    assert set(errors) == {1}
    assert "integer" in errors[1]


def test_a_csv_cell_is_nan_or_an_error_and_never_null() -> None:
    taken, errors = spelled(["nan", "", "NA", "-inf"], TensorSpec("x", "FP64", [-1], nullable=True))

    assert taken == [NAN, NAN, float("-inf")]
    assert set(errors) == {2}


@pytest.mark.parametrize(
    ("datatype", "values", "kind", "taken", "wrong"),
    [
        ("FP64", [2**53 + 1, 2**53, -(2**63)], pa.int64(), [2.0**53, -(2.0**63)], {0}),
        ("FP64", [2**64 - 1, 2**63], pa.uint64(), [2.0**63], {0}),
        ("FP32", [2**53 + 1, 2**24 + 1], pa.int64(), [2.0**24], {0}),
        ("FP16", [70000, 3], pa.int32(), [3.0], {0}),
        ("INT64", [2.0**63, -(2.0**63), math.nan], pa.float64(), [-(2**63)], {0, 2}),
        ("INT64", [-math.inf, math.inf, -5.0], pa.float16(), [-5], {0, 1}),
        ("UINT8", [255.0, 256.0, -1.0, -0.0], pa.float64(), [255, 0], {1, 2}),
        (
            "INT64",
            [Decimal(2**53 + 1), Decimal("1.0"), Decimal("0." + "9" * 18)],
            pa.decimal128(38, 18),
            [2**53 + 1, 1],
            {2},
        ),
        ("UINT64", [Decimal(2**64 - 1), Decimal(-1)], pa.decimal256(40, 0), [2**64 - 1], {1}),
        ("FP64", [Decimal("0.1"), Decimal("70.13"), Decimal(2**53 + 1)], pa.decimal128(20, 2), [0.1, 70.13], {2}),
        ("FP64", [Decimal(2**53 + 1) + Decimal("0.5")], pa.decimal128(20, 2), [2.0**53 + 2], set()),
        ("FP32", [Decimal("0.1"), Decimal(10**40)], pa.decimal256(60, 2), [np.float32(0.1)], {1}),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_number_is_exact_or_rounded_to_nearest_or_an_error(
    datatype: str, values: list[Any], kind: Any, taken: list[Any], wrong: set[int], nested: bool
) -> None:
    spec = TensorSpec("x", datatype, [-1, -1] if nested else [-1])
    rows = rows_of([[each] for each in values] if nested else values, spec, pa.list_(kind) if nested else kind)

    assert set(rows.errors) == wrong
    assert [each[0] if nested else each for each in all_of(rows, spec)["x"]] == taken


NAN = pytest.approx(float("nan"), nan_ok=True)


@pytest.mark.parametrize(
    ("column", "spec", "taken"),
    [
        (pa.array([1, None]), TensorSpec("x", "FP64", [-1], nullable=True), [1.0, NAN]),
        (pa.array([None, None], pa.null()), TensorSpec("x", "FP16", [-1], nullable=True), [NAN, NAN]),
        (pa.array(["a", None, ""]), TensorSpec("x", "BYTES", [-1], nullable=True), [b"a", NULL, b""]),
        (pa.array(["a", None]).dictionary_encode(), TensorSpec("x", "BYTES", [-1], nullable=True), [b"a", NULL]),
        (pa.array([[1.0, None]]), TensorSpec("x", "FP32", [-1, 2], nullable=True), [[1.0, NAN]]),
        (
            pa.array([None, 0], pa.timestamp("s")),
            TensorSpec("x", "BYTES", [-1], nullable=True, logical_type="datetime"),
            [NULL, b"1970-01-01T00:00:00"],
        ),
    ],
)
def test_a_null_is_encoded_for_a_nullable_input(column: pa.Array, spec: TensorSpec, taken: list[Any]) -> None:
    rows = make_rows(Window(pa.table({"x": column})), [spec], {"x": ["x"]})

    assert rows.errors == {}
    assert all_of(rows, spec) == {"x": taken}


DATE = TensorSpec("x", "BYTES", [-1], logical_type="datetime", unit="ms")


@pytest.mark.parametrize(
    ("values", "kind", "taken"),
    [
        ([0, 1_500_000], pa.timestamp("us"), [b"1970-01-01T00:00:00", b"1970-01-01T00:00:01.500000"]),
        ([1], pa.timestamp("ns"), [b"1970-01-01T00:00:00.000000001"]),
        ([0], pa.timestamp("s", "Europe/Berlin"), [b"1970-01-01T01:00:00+01:00"]),
        ([0], pa.timestamp("ms", "UTC"), [b"1970-01-01T00:00:00+00:00"]),
        ([-1], pa.timestamp("ms", "Europe/Berlin"), [b"1970-01-01T00:59:59.999+01:00"]),
        # Berlin was 53 minutes and 28 seconds ahead, an offset that ISO 8601 does not have.
        (
            [-(5 * 10**9), 0],
            pa.timestamp("s", "Europe/Berlin"),
            [b"1811-07-23T15:06:40+00:00", b"1970-01-01T01:00:00+01:00"],
        ),
        ([19844], pa.date32(), [b"2024-05-01"]),
        ([19844 * 86_400_000], pa.date64(), [b"2024-05-01"]),
        (["2024-05-01T10:00:00Z"], pa.string(), [b"2024-05-01T10:00:00Z"]),
        ([1714521600000, -5], pa.int64(), [b"1714521600000", b"-5"]),
        ([1714521600000.0], pa.float64(), [b"1714521600000"]),
    ],
)
def test_a_date_is_sent_as_iso_text_or_digits(values: Any, kind: pa.DataType, taken: list[bytes]) -> None:
    rows = rows_of(values, DATE, kind)

    assert rows.errors == {}
    assert all_of(rows, DATE) == {"x": taken}


def test_a_fraction_is_not_a_date() -> None:
    rows = rows_of([1.5, float("nan"), 1e30, 3.0], DATE, pa.float64())

    assert set(rows.errors) == {0, 1, 2}
    assert all_of(rows, DATE) == {"x": [b"3"]}


TENSOR = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3))


@pytest.mark.parametrize(
    ("column", "spec", "taken"),
    [
        (TENSOR, TensorSpec("x", "FP32", [-1, 2, 3]), np.arange(12.0).reshape(2, 2, 3).tolist()),
        (pa.array([1.5, 2], pa.float16()), X, [1.5, 2.0]),
        (pa.array([[1, 2], [3, 4]], pa.list_view(pa.int64())), TensorSpec("x", "FP32", [-1, 2]), [[1, 2], [3, 4]]),
        (pa.array([1, 5, 1]).dictionary_encode(), X, [1.0, 5.0, 1.0]),
        (pc.run_end_encode(pa.array([7, 7])), X, [7.0, 7.0]),
        (pa.array(["a", "ü"], pa.string_view()), TensorSpec("x", "BYTES", [-1]), [b"a", "ü".encode()]),
        (pa.array([b"ab"], pa.binary(2)), TensorSpec("x", "BYTES", [-1]), [b"ab"]),
        (pa.array([0], pa.timestamp("s")), TensorSpec("x", "BYTES", [-1]), [b"1970-01-01T00:00:00"]),
    ],
)
def test_the_storage_form_of_a_column_does_not_matter(column: pa.Array, spec: TensorSpec, taken: list[Any]) -> None:
    for chunks, times in (([column], 1), ([column, column], 2)):
        rows = make_rows(Window(pa.table({"x": pa.chunked_array(chunks)})), [spec], {"x": ["x"]})

        assert rows.errors == {}
        assert all_of(rows, spec) == {"x": taken * times}


def test_text_of_many_chunks_becomes_one_large_column() -> None:
    """Chunks of more than 2 GiB together fit no array of small offsets."""
    column = pa.chunked_array([["a"], [], ["b", None]], pa.string())

    assert plain(column).type == pa.large_string()
    assert plain(column).to_pylist() == ["a", "b", None]
    assert plain(pa.chunked_array([], pa.string())).to_pylist() == []


def test_five_thousand_columns_make_one_row_in_order() -> None:
    names = [f"c{number}" for number in range(5000)]
    spec = TensorSpec("x", "FP64", [-1, 5000], columns=names)
    table = pa.table({name: [float(number)] for number, name in reversed([*enumerate(names)])})
    rows = make_rows(Window(table), [spec], mapped_columns([spec], {}, table.schema))

    assert all_of(rows, spec)["x"] == [[*map(float, range(5000))]]
