"""With a frame of our own, since pandas is nobody's dependency here; it has what pandas and polars share."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.errors import InvalidInput
from shoal.wire.frames import Rows, unframed, unframed_item
from shoal.wire.items import many_items
from shoal.wire.signature import Signature, Tensor
from tests.client.wire.signatures import ADDER, JSON, TEXTS, TWO, signature


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
        self.columns = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: Any) -> Column:
        return self._columns[name]

    def to_numpy(self) -> Any:
        return np.stack([column.values for column in self._columns.values()], axis=1)


def tensors(frame: Any, sign: Signature) -> dict[str, Any]:
    rows = Rows(unframed(frame, sign), lambda item: item)
    return {name: array.tolist() for name, array in many_items(rows[0 : len(rows)], sign).items()}


def test_columns_together_are_the_rows_of_the_only_input() -> None:
    frame = Frame({"height": [1, 2], "width": [3, 4], "depth": [5, 6]})

    assert tensors(frame, ADDER) == {"x": [[1, 3, 5], [2, 4, 6]]}


def test_columns_as_polars_gives_them_are_rows_too() -> None:
    """Its to_numpy is in Fortran's order, and a column of lists one of objects (tried with polars 2.1)."""
    lists = np.empty(2, object)
    lists[:] = [np.array([1, 2]), np.array([3, 4])]
    by_input, together = Frame({"a": [0, 0], "b": [0.5, 1.5]}), Frame({"p": [1, 2], "q": [3, 4], "r": [5, 6]})
    by_input["a"].values = lists
    rows = Rows(np.asfortranarray(together.to_numpy()), lambda item: item)

    assert tensors(by_input, TWO) == {"a": [[1, 2], [3, 4]], "b": [0.5, 1.5]}
    assert many_items(rows[0:2], ADDER)["x"].tobytes() == np.array([[1, 3, 5], [2, 4, 6]], np.float32).tobytes()


def test_columns_named_as_inputs_are_those() -> None:
    frame = Frame({"b": [0.5, 1.5], "a": [[1, 2], [3, 4]]})

    assert tensors(frame, TWO) == {"a": [[1, 2], [3, 4]], "b": [0.5, 1.5]}


def test_a_number_is_a_row_of_one_where_the_input_takes_such() -> None:
    ages = signature((Tensor("age", "INT64", (-1, 1)), Tensor("fare", "FP32", (-1, 1))))

    assert tensors(Frame({"age": [30, 40], "fare": [1.5, 2.5]}), ages) == {"age": [[30], [40]], "fare": [[1.5], [2.5]]}


def test_one_column_of_texts_is_the_only_input_whatever_its_name() -> None:
    assert tensors(Frame({"review": ["good", "bad"]}), TEXTS) == {"text": [b"good", b"bad"]}
    assert tensors(Column(["good", "bad"]), TEXTS) == {"text": [b"good", b"bad"]}


def test_rows_are_objects_where_the_model_takes_json() -> None:
    assert tensors(Frame({"name": ["Ann"], "age": [30]}), JSON) == {"question": [b'{"name":"Ann","age":30}']}


@pytest.mark.parametrize(
    ("columns", "sign", "sentence"),
    [
        ({"p": [1], "q": [2]}, ADDER, "2 columns, input x takes rows of shape"),
        ({"a": [[1, 2]], "c": [1]}, TWO, "a, b; missing: b"),
        ({"a": [[1, 2]], "b": [1], "c": [1]}, TWO, "a, b; unknown: c"),
        ({"p": ["a"], "q": ["b"]}, TEXTS, "2 columns, input text takes one value"),
    ],
)
def test_columns_that_the_model_does_not_take_are_named(columns: Any, sign: Signature, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        unframed(Frame(columns), sign)


def test_a_frame_of_one_row_is_an_item_and_one_of_several_is_not() -> None:
    one, two = Frame({"a": [1], "b": [2], "c": [3]}), Frame({"a": [1, 2], "b": [2, 3], "c": [3, 4]})

    assert unframed_item(one, ADDER).tolist() == [1, 2, 3]
    with pytest.raises(InvalidInput, match="call predict_batch"):
        unframed_item(two, ADDER)


def test_an_empty_frame_has_no_items() -> None:
    assert len(unframed(Frame({"a": []}), replace(ADDER))) == 0
