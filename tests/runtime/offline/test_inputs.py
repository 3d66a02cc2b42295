"""Columns as the model takes them: nothing changed on the way, and what cannot be taken is an error of its row."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.handlers.spec import TensorSpec
from shoal_runtime.offline.errors import WrongSettings
from shoal_runtime.offline.inputs import Rows, make_rows, take
from shoal_runtime.offline.mapping import check_kinds, mapped_columns
from shoal_runtime.offline.windows import Window

X = TensorSpec("x", "FP32", [-1])
PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""As Hugging Face's datasets write pictures and sounds."""


def rows_of(values: Any, spec: TensorSpec, kind: Any = None, faults: dict[int, str] | None = None) -> Rows:
    return make_rows(Window(pa.table({"c": pa.array(values, kind)}), faults or {}), [spec], {spec.name: ["c"]})


def all_of(rows: Rows, *specs: TensorSpec) -> dict[str, Any]:
    return {name: array.tolist() for name, array in take(rows, rows.good, specs).items()}


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
def test_a_column_is_taken_as_the_model_wants_it(values: Any, kind: Any, spec: TensorSpec, taken: Any) -> None:
    rows = rows_of(values, spec, kind)

    assert rows.errors == {}
    assert all_of(rows, spec) == {"x": taken}


@pytest.mark.parametrize(
    ("values", "kind", "spec", "said"),
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
            {1: "x: a row must have the shape [2], and has [1]"},
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
            [1, Decimal(2**53 + 1)],
            pa.decimal128(20, 0),
            TensorSpec("x", "INT64", [-1]),
            {1: "x: 9007199254740992.0 does not fit INT64"},
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
def test_what_cannot_be_taken_is_an_error_of_its_row(values: Any, kind: Any, spec: TensorSpec, said: Any) -> None:
    rows = rows_of(values, spec, kind)

    assert rows.errors == said
    assert rows.good.tolist() == [0]
    assert len(take(rows, rows.good, [spec])["x"]) == 1


@pytest.mark.parametrize("kind", [pa.uint64(), pa.int64(), pa.decimal128(20, 0)])
def test_whole_numbers_in_lists_of_different_lengths_are_what_they_were(kind: pa.DataType) -> None:
    most = {pa.uint64(): 2**64 - 1, pa.int64(): 2**63 - 1}.get(kind, 2**53 - 1)
    rows = rows_of([[1, most], [3]], TensorSpec("x", "UINT64", [-1, -1]), pa.list_(kind))

    assert rows.errors == {}
    assert [each.tolist() for each in rows.values["x"]] == [[1, most], [3]]


def test_a_row_that_could_not_be_read_goes_to_no_model() -> None:
    rows = rows_of([1.0, 2.0], X, faults={0: "the line is no JSON"})

    assert rows.errors == {0: "the line is no JSON"}
    assert rows.good.tolist() == [1]


@pytest.mark.parametrize(
    ("values", "spec", "said"),
    [
        (["a"], X, "x takes numbers, and the column x holds string"),
        ([["a"]], X, "x takes numbers, and the column x holds string"),
        ([b"\xff"], X, "x takes numbers, and the column x holds binary"),
        ([1.0], TensorSpec("x", "BYTES", [-1]), "x takes texts or bytes, and the column x holds double"),
        ([{"a": 1}], X, "x takes numbers, and the column x holds struct<a: int64>"),
        ([{"bytes": b"a", "path": "a"}], X, "x takes numbers, and the column x holds struct"),
        (
            [{"bytes": b"a", "other": "a"}],
            TensorSpec("x", "BYTES", [-1]),
            "x takes texts or bytes, and the column x holds",
        ),
        (
            [{"bytes": "a", "path": "a"}],
            TensorSpec("x", "BYTES", [-1]),
            "x takes texts or bytes, and the column x holds",
        ),
    ],
)
def test_a_column_of_another_kind_is_refused_at_once(values: Any, spec: TensorSpec, said: str) -> None:
    with pytest.raises(WrongSettings) as refused:
        check_kinds([spec], {"x": ["x"]}, pa.table({"x": values}).schema)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    "values", [["a"], [b"\xff"], pa.array(["a"]).dictionary_encode(), pa.array(["a"], pa.large_string())]
)
def test_texts_and_bytes_are_taken_in_each_form(values: Any) -> None:
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
    taken = take(rows, np.array([0, 2]), [IDS, MASK])
    assert taken["ids"].tolist() == [[1, 9], [4, 5]]
    assert taken["mask"].tolist() == [[1, 0], [1, 1]]
    assert taken["mask"].dtype == np.int32


def test_rows_that_no_padding_makes_alike_never_meet() -> None:
    spec = TensorSpec("x", "FP32", [-1, -1])
    rows = make_rows(Window(pa.table({"x": [[1.0], [1.0, 2.0], [3.0]]})), [spec], {"x": ["x"]})

    assert [rows.keys[0] == rows.keys[row] for row in (1, 2)] == [False, True]


def test_the_dimension_that_counts_rows_is_where_the_model_has_it() -> None:
    spec = TensorSpec("x", "FP32", [3, -1], batch_dim=1)
    rows = rows_of([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], spec)

    assert take(rows, rows.good, [spec])["x"].shape == (3, 2)


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=5), min_size=1, max_size=8), st.data())
def test_whatever_the_lengths_each_row_is_its_own(values: list[list[float]], data: st.DataObject) -> None:
    spec = TensorSpec("x", "FP32", [-1, -1], pad_axis=1)
    rows = make_rows(Window(pa.table({"x": pa.array(values, pa.list_(pa.float32()))})), [spec], {"x": ["x"]})
    chosen = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=5)))

    taken = take(rows, chosen, [spec])["x"]
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
def test_inputs_find_their_columns(specs: Any, asked: Any, found: Any) -> None:
    assert mapped_columns(specs, asked, SCHEMA) == found


def test_the_one_column_of_files_beside_their_paths_is_found() -> None:
    schema = pa.schema([("label", pa.int64()), ("image", PICTURE)])

    assert mapped_columns([TensorSpec("picture", "BYTES", [-1])], {}, schema) == {"picture": ["image"]}


@pytest.mark.parametrize(
    ("specs", "asked", "said"),
    [
        ([X], {"z": "x"}, "the model has no input z: it takes x"),
        ([X], {"x": "absent"}, "there is no column absent: the input has the columns x, y, picture"),
        ([TensorSpec("w", "FP32", [-1])], {}, "which column is w? Say --columns w=COLUMN"),
    ],
)
def test_inputs_without_a_column_are_named(specs: Any, asked: Any, said: str) -> None:
    with pytest.raises(WrongSettings) as raised:
        mapped_columns(specs, asked, SCHEMA)
    assert said in str(raised.value)


def test_several_columns_are_as_many_as_a_row_has() -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.float64())])
    check_kinds([TensorSpec("x", "FP32", [-1, 2])], {"x": ["a", "b"]}, schema)
    check_kinds([TensorSpec("x", "FP32", [-1, -1])], {"x": ["a", "b"]}, schema)
    with pytest.raises(WrongSettings, match=r"x takes rows of the shape \[16\], not 2 columns"):
        check_kinds([TensorSpec("x", "FP32", [-1, 16])], {"x": ["a", "b"]}, schema)
