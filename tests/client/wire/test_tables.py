"""Columns as inputs and outputs as columns, of arrays, frames and tables."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest

from shoal.errors import InvalidInput
from shoal.wire.datatypes import object_array
from shoal.wire.parts import parts_of
from shoal.wire.signature import Signature, Tensor
from shoal.wire.tables import chosen_columns, inputs_of, names_in, rows_in, with_columns
from shoal_schema.wire.columns import NULL
from tests.client.wire.signatures import signature

IDS = Tensor("ids", "INT64", (-1,))
MODEL = Signature("m", ("1",), (IDS, Tensor("extra", "FP32", (-1, 2), optional=True)), ())
BATCHES = [
    {"ids": np.array([1, 2, 3]), "b": np.array([1.5, 2.5, 3.5])},
    pandas.DataFrame({"ids": [1, 2, 3], "b": [1.5, 2.5, 3.5]}),
    pyarrow.table({"ids": [1, 2, 3], "b": [1.5, 2.5, 3.5]}),
]


@pytest.mark.parametrize("batch", BATCHES)
def test_columns_are_inputs_by_name_or_as_somebody_says(batch: Any) -> None:
    assert (names_in(batch), rows_in(batch)) == (["ids", "b"], 3)
    assert chosen_columns(None, batch, MODEL) == {"ids": "ids"}
    inputs = inputs_of(batch, chosen_columns({"ids": "ids", "extra": ["ids", "b"]}, batch, MODEL), MODEL)
    assert inputs["ids"].tolist() == [1, 2, 3]
    assert inputs["extra"].tolist() == [[1, 1.5], [2, 2.5], [3, 3.5]]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": "ids"}, "no input id, only ids, extra"),
        ({"ids": "id"}, "no column id, only ids, b"),
        ({"extra": ["b", "b"]}, "columns={'ids': COLUMN}"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        chosen_columns(columns, BATCHES[0], MODEL)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "column",
    [
        np.array([1.0, np.nan, 3.0]),
        [1, None, 3],
        pandas.Series([1, None, 3]),
        pandas.Series([1, None, 3], dtype="Int64"),
        pyarrow.array([1, None, 3]),
        pyarrow.chunked_array([[1, None], [3]]),
    ],
)
def test_nulls_among_whole_numbers_are_nulls_whoever_holds_them(column: Any) -> None:
    values = inputs_of({"ids": column}, {"ids": "ids"}, MODEL)["ids"]
    assert values.tolist() == [1, None, 3]
    assert [type(each) for each in values] == [int, type(None), int]


@pytest.mark.parametrize("column", [[1.5, np.nan], [np.inf, np.nan], [1.0, 2.0]])
def test_decimal_numbers_stay_what_they_are(column: list[float]) -> None:
    values = inputs_of({"ids": np.array(column)}, {"ids": "ids"}, MODEL)["ids"]
    assert values.dtype == np.float64


def test_texts_lists_and_several_columns_have_nulls_too() -> None:
    model = Signature("m", ("1",), (Tensor("x", "BYTES", (-1,)),), ())
    for column in (
        pandas.Series(["a", None]),
        pyarrow.array(["a", None]),
        pyarrow.array([b"a", None]),
    ):
        assert inputs_of({"x": column}, {"x": "x"}, model)["x"].tolist() in (["a", None], [b"a", None])
    lists = inputs_of({"x": pyarrow.array([[1, 2], None])}, {"x": "x"}, model)["x"]
    assert (list(lists[0]), lists[1]) == ([1, 2], None)
    two = {"a": pyarrow.array([1, None, 3]), "b": np.array([1.5, 2.5, 3.5])}
    assert inputs_of(two, {"x": ["a", "b"]}, model)["x"].tolist() == [[1, 1.5], None, [3, 3.5]]


WIDE = Signature("m", ("1",), (Tensor("input-0", "FP64", (-1, 2), columns=("a", "b"), nullable=True),), ())
STRICT = Signature("m", ("1",), (Tensor("input-0", "FP64", (-1, 2), columns=("a", "b")),), ())
GIVEN = {"b": [0.5, None, 2.5], "id": ["x", "y", "z"], "a": [1, 2, None]}
KINDS: list[Callable[[dict[str, Any]], Any]] = [
    lambda columns: {name: np.array(values, object) for name, values in columns.items()},
    pandas.DataFrame,
    lambda columns: pandas.DataFrame(columns).convert_dtypes(),
    lambda columns: pandas.DataFrame(columns).astype({"a": "category"}),
    pyarrow.table,
    lambda columns: pyarrow.table({name: pyarrow.array(each).dictionary_encode() for name, each in columns.items()}),
    lambda columns: pyarrow.concat_tables([pyarrow.table(columns).slice(0, 1), pyarrow.table(columns).slice(1)]),
]


def parts_in(batch: Any, model: Signature) -> tuple[dict[int, Any], dict[int, str]]:
    """Return each row's values of the first input, by row, and why other rows failed."""
    inputs = inputs_of(batch, chosen_columns(None, batch, model), model)
    parts, failed = parts_of(inputs, rows_in(batch), model)
    name = model.inputs[0].name
    return {row: value for part in parts for row, value in zip(part.rows, part.tensors[name], strict=True)}, failed


@pytest.mark.parametrize("make", KINDS)
def test_columns_of_one_input_are_matched_by_name_whoever_holds_them(make: Callable[[dict[str, Any]], Any]) -> None:
    found, failed = parts_in(make(GIVEN), WIDE)
    np.testing.assert_array_equal([found[row] for row in range(3)], [[1, 0.5], [2, np.nan], [np.nan, 2.5]])
    assert failed == {}


@pytest.mark.parametrize("make", [pyarrow.table, lambda columns: pandas.DataFrame(columns).convert_dtypes()])
def test_null_fails_its_row_where_the_input_does_not_accept_it(make: Callable[[dict[str, Any]], Any]) -> None:
    found, failed = parts_in(make(GIVEN), STRICT)
    assert found[0].tolist() == [1, 0.5]
    assert sorted(failed) == [1, 2]
    assert all("does not accept null" in message for message in failed.values())


@pytest.mark.parametrize(
    ("columns", "said"),
    [(["a"], "column b is missing"), (["a", "B"], "column b is missing, but there is 'B'")],
)
def test_a_missing_column_is_named(columns: list[str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        chosen_columns(None, {name: np.ones(2) for name in columns}, WIDE)


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'a' is duplicated"):
        chosen_columns(None, pandas.DataFrame([[1, 2, 3]], columns=["a", "b", "a"]), WIDE)


UTC_DATES = pyarrow.array([0, None], pyarrow.timestamp("ms", "UTC"))


@pytest.mark.parametrize(
    ("column", "first"),
    [
        (pyarrow.array([0, None], pyarrow.timestamp("ms")), b"1970-01-01T00:00:00"),
        (pyarrow.array([0, None], pyarrow.timestamp("ns")), b"1970-01-01T00:00:00"),
        (UTC_DATES, b"1970-01-01T00:00:00+00:00"),
        (pyarrow.array([0, None], pyarrow.date32()), b"1970-01-01"),
        (UTC_DATES.to_pandas(), b"1970-01-01T00:00:00+00:00"),
        (np.array(["1970-01-01", "NaT"], "datetime64[s]"), b"1970-01-01T00:00:00"),
        (pyarrow.array(["1970-01-01", None]), b"1970-01-01"),
        (pyarrow.array(["1970-01-01", None]).dictionary_encode(), b"1970-01-01"),
        (pyarrow.array([12, None]), b"12"),
    ],
)
def test_dates_are_texts_in_iso_8601_whoever_holds_them(column: Any, first: bytes) -> None:
    tensor = Tensor("t", "BYTES", (-1,), nullable=True, logical_type="datetime", unit="s")
    found, failed = parts_in({"t": column}, Signature("m", ("1",), (tensor,), ()))
    assert (found[0], found[1], failed) == (first, NULL, {})


OUTPUTS = [
    (Tensor("y", "FP32", (-1,)), np.float32(1.5), 1.5, pyarrow.float32()),
    (Tensor("y", "FP64", (-1, 2)), np.array([1.0, 2.0]), [1.0, 2.0], pyarrow.list_(pyarrow.float64())),
    (
        Tensor("y", "FP32", (2, -1, 2), batch_dim=1),
        np.ones((2, 2), "f4"),
        [[1.0, 1.0]] * 2,
        pyarrow.list_(pyarrow.list_(pyarrow.float32())),
    ),
    (Tensor("y", "FP32", (-1, -1)), np.array([1.0], "f4"), [1.0], pyarrow.list_(pyarrow.float32())),
    (Tensor("y", "UINT8", (-1,)), np.uint8(7), 7, pyarrow.uint8()),
    (Tensor("y", "BOOL", (-1,)), np.True_, True, pyarrow.bool_()),
    (Tensor("y", "BYTES", (-1,)), "text", "text", pyarrow.string()),
    (Tensor("y", "BYTES", (-1,)), b"\xff", "�", pyarrow.string()),
    (Tensor("y", "BYTES", (-1,), content_types=("image/png",)), b"\xff", b"\xff", pyarrow.binary()),
    (
        Tensor("y", "BYTES", (-1, 2), content_types=("application/json",)),
        object_array([{"a": 1}, None], (2,)),
        ['{"a":1}', "null"],
        pyarrow.list_(pyarrow.string()),
    ),
]


@pytest.mark.parametrize(("tensor", "value", "expected", "kind"), OUTPUTS)
@pytest.mark.parametrize("good", [(0, 2), (0, 1, 2), ()])
def test_an_output_has_one_type_however_many_rows_failed(
    tensor: Tensor, value: Any, expected: Any, kind: Any, good: tuple[int, ...]
) -> None:
    values = object_array([value if row in good else None for row in range(3)], (3,))
    failed = {row: "why" for row in range(3) if row not in good}
    for batch in BATCHES:
        answer = with_columns(batch, {"y": (tensor, values)}, failed, "wrong")
        assert type(answer) is type(batch)
        assert names_in(answer) == ["ids", "b", "y", "wrong"]
        if isinstance(batch, pandas.DataFrame):
            answer = pyarrow.Table.from_pandas(answer)
        elif isinstance(answer["y"], np.ndarray):  # floats of one shape, as users of numpy have them
            assert (answer["y"].dtype, len(answer["y"])) == (np.asarray(value).dtype, 3)
            assert np.isnan(answer["y"]).reshape(3, -1).all(axis=1).tolist() == [row in failed for row in range(3)]
            continue
        assert answer["y"].type == kind
        assert answer["y"].to_pylist() == [expected if row in good else None for row in range(3)]
        assert answer["wrong"].to_pylist() == [failed.get(row) for row in range(3)]


def test_columns_that_are_listed_are_the_models_own_in_its_order() -> None:
    sign = signature((Tensor("x", "FP32", (-1, 2), columns=("a", "b")),))
    batch = {"b": np.array([2.0, 4.0]), "a": np.array([1.0, 3.0]), "c": np.array([5.0, 6.0])}

    for columns in (None, {"x": ["a", "b"]}, {"x": ["b", "a"]}):
        assert inputs_of(batch, chosen_columns(columns, batch, sign), sign)["x"].tolist() == [[1, 2], [3, 4]]
    assert inputs_of(batch, chosen_columns({"x": ["a", "c"]}, batch, sign), sign)["x"].tolist() == [[1, 5], [3, 6]]
    with pytest.raises(InvalidInput, match="at position 1"):
        chosen_columns({"x": ["b", "c"]}, batch, sign)


def test_flags_are_numbers_in_columns_with_names() -> None:
    sign = signature((Tensor("x", "FP32", (-1, 2), columns=("a", "b")), Tensor("n", "INT64", (-1,))))
    batch = pyarrow.table({"n": [True, False], "b": [0.5, 1.5], "a": [False, True]})

    found = inputs_of(batch, chosen_columns(None, batch, sign), sign)
    assert {name: each.tolist() for name, each in found.items()} == {"x": [[0, 0.5], [1, 1.5]], "n": [1, 0]}
