"""Rows that carry the names of their columns: of Python, numpy, pandas, Arrow and sqlite."""

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import make_dataclass
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InvalidInput
from shoal.files import plain
from shoal.wire.frames import Rows, row_of_frame, rows_of_frame
from shoal.wire.items import encode_item, encode_items
from shoal.wire.signature import Signature, Tensor
from tests.client.wire.signatures import ADDER, JSON, TEXTS, TWO, signature

NAMES = ("height", "width", "depth")
WIDE = signature((Tensor("x", "FP64", (-1, 3), columns=NAMES),))
APART = signature(tuple(Tensor(name, "FP64", (-1,)) for name in NAMES))
Table = Sequence[Sequence[Any]]
Make = Callable[[Sequence[str], Table], Any]


def row_type(*names: str) -> Any:
    return namedtuple("Row", names)


def frame(names: Sequence[str], table: Table) -> pandas.DataFrame:
    return pandas.DataFrame(table, columns=list(names))


def arrow(names: Sequence[str], table: Table) -> pyarrow.Table:
    return pyarrow.Table.from_pandas(frame(names, table), preserve_index=False)


def named_tuples(names: Sequence[str], table: Table) -> list[Any]:
    return [row_type(*names)(*row) for row in table]


def dataclasses(names: Sequence[str], table: Table) -> list[Any]:
    return [make_dataclass("Row", names)(*row) for row in table]


def structured(names: Sequence[str], table: Table) -> Any:
    return np.array([tuple(row) for row in table], dtype=[(name, "f8") for name in names])


def database(names: Sequence[str], table: Table) -> list[Any]:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    rows = [
        f"SELECT {', '.join(f'{value!r} AS {name}' for name, value in zip(names, row, strict=True))}" for row in table
    ]
    found = [connection.execute(row).fetchone() for row in rows]
    connection.close()
    return found


MAKES: dict[str, Make] = {
    "frame": frame,
    "frames": lambda names, table: [frame(names, [row]) for row in table],
    "rows of a frame": lambda names, table: [row for _, row in frame(names, table).iterrows()],
    "itertuples": lambda names, table: list(frame(names, table).itertuples()),
    "itertuples without index": lambda names, table: list(frame(names, table).itertuples(index=False)),
    "named tuples": named_tuples,
    "dataclasses": dataclasses,
    "table of Arrow": arrow,
    "batch of Arrow": lambda names, table: arrow(names, table).combine_chunks().to_batches()[0],
    "batches of Arrow": lambda names, table: arrow(names, table).to_batches(max_chunksize=1),
    "structured array": structured,
    "record array": lambda names, table: structured(names, table).view(np.recarray),
    "rows of a structured array": lambda names, table: list(structured(names, table)),
    "rows of sqlite": database,
    "objects": lambda names, table: frame(names, table).to_dict("records"),
    "columns": lambda names, table: frame(names, table).to_dict("list"),
    "named tuple of columns": lambda names, table: row_type(*names)(*zip(*table, strict=True)),
}
TABLES = st.lists(st.lists(st.integers(-99, 99).map(float), min_size=3, max_size=3), min_size=1, max_size=4)


def tensors(items: Any, sign: Signature) -> dict[str, Any]:
    rows = Rows(rows_of_frame(items, sign), plain)
    return {name: array.tolist() for name, array in encode_items(rows[0 : len(rows)], sign, 0).items()}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_rows_with_names_are_matched_by_them_in_any_order(make: Make) -> None:
    @settings(max_examples=20)
    @given(TABLES, st.permutations(NAMES))
    def check(table: list[list[float]], order: list[str]) -> None:
        places = [NAMES.index(name) for name in order]
        items = make(order, [[row[place] for place in places] for row in table])

        assert tensors(items, WIDE) == {"x": table}
        assert tensors(items, APART) == {name: [row[at] for row in table] for at, name in enumerate(NAMES)}

    check()


WHOLE = ("frame", "columns", "named tuple of columns", "structured array", "record array")


@pytest.mark.parametrize("make", [make for name, make in MAKES.items() if name not in WHOLE and "Arrow" not in name])
def test_one_row_with_names_is_an_item(make: Make) -> None:
    [row] = make(("depth", "height", "width"), [[3, 1, 2]])
    for item in (row, {"x": row}):
        if not isinstance(item, dict) or not isinstance(row, pandas.DataFrame):
            assert encode_item(plain(row_of_frame(item, WIDE)), WIDE)["x"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize(
    ("names", "sign", "said"),
    [
        pytest.param(("height", "width", "Depth"), WIDE, "depth", id="another case"),
        pytest.param(("height", "width"), WIDE, "depth is missing", id="missing"),
        pytest.param((*NAMES, "id"), WIDE, "no column 'id'", id="one more"),
        pytest.param(NAMES, ADDER, "model model", id="a model without names"),
    ],
)
def test_names_that_are_not_the_models_are_refused(
    make: Make, names: Sequence[str], sign: Signature, said: str
) -> None:
    if sign is ADDER and make is MAKES["objects"]:
        said = "no input"
    with pytest.raises(InvalidInput, match=said):
        tensors(make(names, [range(len(names))]), sign)


def test_a_field_that_pandas_renamed_is_refused() -> None:
    blank = signature((Tensor("x", "FP64", (-1, 2), columns=("a", "b c")),))
    with pytest.raises(InvalidInput, match="data frame itself"):
        tensors(list(pandas.DataFrame({"b c": [1.0], "a": [2.0]}).itertuples()), blank)


def test_the_index_of_a_frame_is_no_column() -> None:
    indexed = signature((Tensor("x", "FP64", (-1, 2), columns=("a", "Index")),))
    given = row_type("Index", "a")(Index=1.0, a=2.0)
    assert tensors([given], indexed) == {"x": [[2, 1]]}
    with pytest.raises(InvalidInput, match="may be the frame's index"):
        tensors(list(pandas.DataFrame({"a": [1.0]}).itertuples()), indexed)


def test_names_that_are_there_twice_are_refused() -> None:
    row = pandas.Series([1.0, 2.0, 3.0, 4.0], index=[*NAMES, "width"])
    with pytest.raises(InvalidInput, match="'width' is duplicated"):
        tensors([row], WIDE)
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    twice = connection.execute("SELECT 1 AS height, 2 AS width, 3 AS depth, 4 AS width").fetchone()
    connection.close()
    with pytest.raises(InvalidInput, match="'width' is duplicated"):
        tensors([twice], WIDE)


def test_lists_tuples_and_arrays_are_positional() -> None:
    for rows in ([[1, 2, 3]], [(1, 2, 3)], np.array([[1, 2, 3]]), [np.array([1, 2, 3])]):
        assert tensors(rows, WIDE) == {"x": [[1, 2, 3]]}
    for index in (None, pandas.date_range("2024-01-01", periods=3), [7, 8, 9]):
        assert tensors([pandas.Series([1, 2, 3], index=index)], ADDER) == {"x": [[1, 2, 3]]}


def test_rows_with_names_are_objects_where_the_model_takes_json() -> None:
    for row in named_tuples(("name", "age"), [["Ann", 30]]) + dataclasses(("name", "age"), [["Ann", 30]]):
        assert tensors([row], JSON) == {"question": [b'{"name":"Ann","age":30}']}


def test_a_row_with_names_holds_whole_inputs_too() -> None:
    row = row_type("b", "a")(0.5, [1, 2])
    assert tensors([row], TWO) == {"a": [[1, 2]], "b": [0.5]}
    assert tensors([row_type("text")("good")], TEXTS) == {"text": [b"good"]}


def test_flags_are_numbers_in_columns_with_names_alone() -> None:
    whole = signature((Tensor("x", "INT64", (-1, 2), columns=("a", "b")),))
    for sign in (whole, signature((Tensor("a", "INT64", (-1,)), Tensor("b", "FP32", (-1, 1))))):
        expected = encode_item({"a": 1, "b": 0}, sign)
        for row in ({"b": False, "a": True}, {"a": np.True_, "b": np.False_}):
            found = encode_item(row, sign)
            assert {name: each.tolist() for name, each in found.items()} == {
                name: each.tolist() for name, each in expected.items()
            }
    with pytest.raises(InvalidInput, match="not bool"):
        encode_item([True, 1], whole)


def test_a_data_frame_as_the_value_of_an_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the frame itself"):
        tensors({"x": frame(NAMES, [[1, 2, 3]])}, WIDE)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_column_may_be_called_as_an_attribute_of_its_table(make: Make) -> None:
    names = ("columns", "column_names", "keys")
    called = signature((Tensor("x", "FP64", (-1, 3), columns=names),))
    assert tensors(make(("keys", "columns", "column_names"), [[3, 1, 2]]), called) == {"x": [[1, 2, 3]]}
