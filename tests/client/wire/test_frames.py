"""With frames of pandas, and one of our own that has what pandas and polars share."""

from dataclasses import replace
from datetime import date
from itertools import permutations
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest

from shoal.errors import InvalidInput
from shoal.wire.frames import Rows, row_of_frame, rows_of_frame
from shoal.wire.items import encode_item, encode_items
from shoal.wire.signature import Signature, Tensor
from shoal_schema.wire.columns import NULL
from tests.client.wire.signatures import ADDER, JSON, TEXTS, TWO, signature

NAMED = signature((Tensor("x", "FP32", (-1, 3), columns=("height", "width", "depth"), nullable=True),))


class Column:
    def __init__(self, values: list[Any]) -> None:
        self.values = np.asarray(values)

    def __len__(self) -> int:
        return len(self.values)

    def to_numpy(self) -> Any:
        return self.values


class Frame:
    def __init__(self, columns: dict[Any, list[Any]]) -> None:
        self._columns = {name: Column(values) for name, values in columns.items()}

    @property
    def columns(self) -> list[Any]:
        return list(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: Any) -> Column:
        return self._columns[name]

    def to_numpy(self) -> Any:
        return np.stack([column.values for column in self._columns.values()], axis=1)


def tensors(frame: Any, sign: Signature) -> dict[str, Any]:
    rows = Rows(rows_of_frame(frame, sign), lambda item: item)
    return {name: array.tolist() for name, array in encode_items(rows[0 : len(rows)], sign).items()}


@pytest.mark.parametrize("names", [(0, 1, 2), ("0", "1", "2")])
def test_columns_without_names_are_together_the_rows_of_the_only_input(names: tuple[Any, ...]) -> None:
    values = [[1, 2], [3, 4], [5, 6]]
    for sign in (ADDER, NAMED):
        assert tensors(Frame(dict(zip(names, values, strict=True))), sign) == {"x": [[1, 3, 5], [2, 4, 6]]}
        for order in list(permutations(names))[1:]:
            for frame in (Frame({name: [1, 2] for name in order}), pandas.DataFrame([range(3)], columns=list(order))):
                with pytest.raises(InvalidInput, match="out of order"):
                    tensors(frame, sign)
            with pytest.raises(InvalidInput, match="out of order"):
                encode_item(pandas.Series(range(3), index=list(order)), sign)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_columns_whose_names_are_numbers_are_matched_by_them(order: tuple[int, ...]) -> None:
    numbered = signature((Tensor("x", "FP32", (-1, 3), columns=("1", "2", "0")),))
    frame = pandas.DataFrame([[each * 10 for each in order]], columns=list(order))

    for rows in (frame, pyarrow.table({str(name): frame[name] for name in order})):
        assert tensors(rows, numbered) == {"x": [[10, 20, 0]]}
    assert encode_item(frame.iloc[0], numbered)["x"].tolist() == [[10, 20, 0]]


@pytest.mark.parametrize("order", list(permutations(["height", "width", "depth"])))
def test_columns_are_matched_by_name_in_any_order(order: tuple[str, ...]) -> None:
    values: dict[Any, list[Any]] = {"height": [1, 2], "width": [3, None], "depth": [5, 6]}
    columns = {name: values[name] for name in order}

    for rows in (Frame(columns), columns, pandas.DataFrame(columns), pyarrow.table(columns).to_pandas()):
        np.testing.assert_array_equal(tensors(rows, NAMED)["x"], [[1, 3, 5], [2, np.nan, 6]])
    item = {name: columns[name][1] for name in order}
    for row in (item, pandas.Series(item), pandas.DataFrame([item])):
        np.testing.assert_array_equal(encode_item(row_of_frame(row, NAMED), NAMED)["x"], [[2, np.nan, 6]])


def test_names_that_the_model_does_not_have_are_never_matched_by_position() -> None:
    with pytest.raises(InvalidInput, match="height, width, depth"):
        rows_of_frame(Frame({"height": [1, 2], "width": [3, 4], "depth": [5, 6]}), ADDER)
    with pytest.raises(InvalidInput, match="did you mean height"):
        rows_of_frame(Frame({"Height": [1, 2], "width": [3, 4], "depth": [5, 6]}), NAMED)
    with pytest.raises(InvalidInput, match="duplicated"):
        rows_of_frame(pandas.DataFrame([[1, 2]], columns=["a", "a"]), TWO)


def test_a_column_of_a_frame_that_does_not_fit_its_input_is_named() -> None:
    sign = signature((Tensor("x", "INT64", (-1, 2), columns=("a", "b")),))
    assert tensors(pandas.DataFrame({"b": [3.0, 4.0], "a": [1.0, 2.0]}), sign) == {"x": [[1, 3], [2, 4]]}
    for wrong, said in (([3.0, 4.5], "input b"), ([3.0, None], "'b' does not accept null")):
        with pytest.raises(InvalidInput, match=said):
            rows_of_frame(pandas.DataFrame({"b": wrong, "a": [1.0, 2.0]}), sign)


COLUMN: dict[str, list[tuple[Any, list[Any]]]] = {
    "FP64": [
        (pandas.Series([1.5, None]), [1.5, np.nan]),
        (pandas.Series([1, None], dtype="Int64"), [1, np.nan]),
        (pandas.Series([1.5, None], dtype="Float64"), [1.5, np.nan]),
        (pandas.Series([1, None, 1], dtype="category"), [1, np.nan, 1]),
        (pandas.Series([1, pandas.NA], dtype=object), [1, np.nan]),
        (pandas.Series([1, 2], dtype="Int8"), [1, 2]),
        ([1, None], [1, np.nan]),
        (pandas.Series([True, False]), [1, 0]),
        (pandas.Series([True, None], dtype="boolean"), [1, np.nan]),
        ([True, 1.5], [1, 1.5]),
    ],
    "INT64": [
        (pandas.Series([1, 2], dtype="Int64"), [1, 2]),
        (pandas.Series([2**62, 2]), [2**62, 2]),
        (pandas.Series([1.0, -3.0]), [1, -3]),
        (pandas.Series([1, 2], dtype="category"), [1, 2]),
        (pandas.Series([2.0**53 - 1, 1.0]), [2**53 - 1, 1]),
        (pyarrow.array([True, False]), [1, 0]),
    ],
    "BOOL": [(pandas.Series([True, False], dtype="boolean"), [True, False])],
    "BYTES": [
        (pandas.Series(["a", None]), [b"a", NULL]),
        (pandas.Series(["a", None], dtype="category"), [b"a", NULL]),
        (pandas.Series(["a", np.nan], dtype=object), [b"a", NULL]),
        (pandas.Series(["a", pandas.NA], dtype=object), [b"a", NULL]),
    ],
}
DATES: list[tuple[Any, list[Any]]] = [
    (pandas.Series(pandas.to_datetime(["2024-05-01", None])), [b"2024-05-01T00:00:00", NULL]),
    (pandas.Series(pandas.to_datetime(["2024-05-01T01:00:00Z", None])), [b"2024-05-01T01:00:00+00:00", NULL]),
    (np.array(["2024-05-01", "NaT"], "datetime64[D]"), [b"2024-05-01", NULL]),
    ([date(2024, 5, 1), "2024-05-02", 12, 13.0, None], [b"2024-05-01", b"2024-05-02", b"12", b"13", NULL]),
]


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [(datatype, *case) for datatype, cases in COLUMN.items() for case in cases] + [("date", *case) for case in DATES],
)
def test_columns_of_every_kind_are_plain_values_and_nulls(datatype: str, values: Any, expected: list[Any]) -> None:
    if datatype == "date":
        one = Tensor("a", "BYTES", (-1,), nullable=True, logical_type="datetime", unit="ms")
    else:
        one = Tensor("a", datatype, (-1,), nullable=datatype in ("FP64", "BYTES"))
    other = Tensor("b", "INT64", (-1,))
    found = tensors({"a": values, "b": np.arange(len(values))}, signature((one, other)))["a"]
    if datatype == "date":
        assert [each.split(b".")[0] for each in found] == expected
    else:
        np.testing.assert_array_equal(np.array(found, object if datatype == "BYTES" else None), expected)


@pytest.mark.parametrize(
    ("datatype", "values", "said"),
    [
        ("FP64", [1.0, None], "'a' does not accept null"),
        ("INT64", [1, None], "'a' does not accept null"),
        ("INT64", pandas.Series([1.0, np.nan]), "'a' does not accept null"),
        ("BYTES", pandas.Series(["a", None]), "'a' does not accept null"),
        ("BOOL", pandas.Series([True, None], dtype="boolean"), "'a' does not accept null"),
        ("INT64", pandas.Series([2.0**53]), "INT64"),
        ("INT64", np.array([2**24], np.float32), "INT64"),
        ("INT64", [1.5, 2], "INT64"),
        ("INT64", pandas.Series([2.0**60]), "INT64"),
        ("FP64", ["1", "2"], "text"),
        ("BOOL", [0, 1], "BOOL"),
        ("BYTES", [1, 2], "bytes or str"),
    ],
)
def test_columns_that_do_not_fit_are_named(datatype: str, values: Any, said: str) -> None:
    sign = signature((Tensor("a", datatype, (-1,)), Tensor("b", "INT64", (-1,))))
    with pytest.raises(InvalidInput, match=said):
        tensors({"a": values, "b": np.arange(len(values))}, sign)


def test_columns_as_polars_gives_them_are_rows_too() -> None:
    """Its to_numpy is in Fortran's order, and a column of lists one of objects (tried with polars 2.1)."""
    lists = np.empty(2, object)
    lists[:] = [np.array([1, 2]), np.array([3, 4])]
    by_input, together = Frame({"a": [0, 0], "b": [0.5, 1.5]}), Frame({"p": [1, 2], "q": [3, 4], "r": [5, 6]})
    by_input["a"].values = lists
    rows = Rows(np.asfortranarray(together.to_numpy()), lambda item: item)

    assert tensors(by_input, TWO) == {"a": [[1, 2], [3, 4]], "b": [0.5, 1.5]}
    assert encode_items(rows[0:2], ADDER)["x"].tobytes() == np.array([[1, 3, 5], [2, 4, 6]], np.float32).tobytes()


def test_columns_named_as_inputs_are_those() -> None:
    frame = Frame({"b": [0.5, 1.5], "a": [[1, 2], [3, 4]]})

    assert tensors(frame, TWO) == {"a": [[1, 2], [3, 4]], "b": [0.5, 1.5]}


def test_a_number_is_a_row_of_one_where_the_input_takes_such() -> None:
    ages = signature((Tensor("age", "INT64", (-1, 1)), Tensor("fare", "FP32", (-1, 1))))

    assert tensors(Frame({"age": [30, 40], "fare": [1.5, 2.5]}), ages) == {"age": [[30], [40]], "fare": [[1.5], [2.5]]}


def test_one_column_of_texts_is_the_only_input_by_its_name_or_without_one() -> None:
    for name in ("text", 0):
        assert tensors(Frame({name: ["good", "bad"]}), TEXTS) == {"text": [b"good", b"bad"]}
    assert tensors(Column(["good", "bad"]), TEXTS) == {"text": [b"good", b"bad"]}


def test_rows_are_objects_where_the_model_takes_json() -> None:
    assert tensors(Frame({"name": ["Ann"], "age": [30]}), JSON) == {"question": [b'{"name":"Ann","age":30}']}


@pytest.mark.parametrize(
    ("columns", "sign", "sentence"),
    [
        ({"0": [1], "1": [2]}, ADDER, "takes rows of shape .* 2 columns"),
        ({"a": [[1, 2]], "c": [1]}, TWO, "no input 'c'; did you mean b"),
        ({"a": [[1, 2]]}, TWO, "input b is missing"),
        ({"a": [[1, 2]], "b": [1], "c": [1]}, TWO, "no input 'c'"),
        ({"p": ["a"], "q": ["b"]}, TEXTS, "input text is missing"),
    ],
)
def test_columns_that_the_model_does_not_take_are_named(columns: Any, sign: Signature, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        rows_of_frame(Frame(columns), sign)


def test_a_frame_of_one_row_is_an_item_and_one_of_several_is_not() -> None:
    one, two = Frame({0: [1], 1: [2], 2: [3]}), Frame({0: [1, 2], 1: [2, 3], 2: [3, 4]})

    assert row_of_frame(one, ADDER).tolist() == [1, 2, 3]
    with pytest.raises(InvalidInput, match="predict_batch"):
        row_of_frame(two, ADDER)


def test_an_empty_frame_has_no_items() -> None:
    assert len(rows_of_frame(Frame({"a": []}), replace(ADDER))) == 0
