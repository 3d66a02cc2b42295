from typing import Any

import numpy as np
import pytest

from shoal.errors import InvalidInput
from shoal.wire.items import encode_item, encode_items
from shoal.wire.signature import Signature, Tensor
from tests.client.wire.signatures import (
    ADDER,
    JSON,
    MASKED,
    PICTURES,
    TEXTS,
    TIME_FIRST,
    TWO,
    UNBATCHED,
    signature,
)


@pytest.mark.parametrize(
    "item",
    [
        pytest.param([1, 2, 3], id="list of ints"),
        pytest.param((1.0, 2.0, 3.0), id="tuple of floats"),
        pytest.param(np.array([1, 2, 3], dtype=np.float64), id="another float type"),
        pytest.param(np.array([1, 2, 3], dtype=np.uint8), id="small ints"),
        pytest.param({"x": [1, 2, 3]}, id="by name"),
    ],
)
def test_an_item_becomes_a_batch_of_one_of_the_declared_type(item: Any) -> None:
    tensors = encode_item(item, ADDER)

    assert tensors["x"].dtype == np.float32
    assert tensors["x"].tolist() == [[1, 2, 3]]


def test_items_are_stacked_along_each_inputs_batch_dimension() -> None:
    items = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]

    assert encode_items(items, TIME_FIRST)["x"].T.tolist() == items


def test_an_array_of_items_is_a_batch() -> None:
    assert encode_items(np.zeros((4, 3)), ADDER)["x"].shape == (4, 3)


def test_several_inputs_are_given_by_name() -> None:
    tensors = encode_items([{"a": [1, 2], "b": 0.5}, {"a": [3, 4], "b": 1}], TWO)

    assert tensors["a"].tolist() == [[1, 2], [3, 4]]
    assert tensors["b"].tolist() == [0.5, 1.0]


def test_a_value_named_by_its_input_is_a_row_of_one() -> None:
    tall = signature((Tensor("a", "FP32", (-1, 1)), Tensor("b", "BYTES", (-1, 1))))
    tensors = encode_items([{"a": 1, "b": "x"}, {"b": ["y"], "a": [2]}], tall)

    assert tensors["a"].tolist() == [[1], [2]]
    assert tensors["b"].tolist() == [[b"x"], [b"y"]]


def test_an_optional_input_may_be_left_out() -> None:
    assert list(encode_item([1, 2], MASKED)) == ["ids"]
    assert list(encode_item({"ids": [1, 2], "mask": [1, 0]}, MASKED)) == ["ids", "mask"]


def test_a_model_that_does_not_batch_gets_the_item_as_it_is() -> None:
    assert encode_item([[1, 2], [3, 4]], UNBATCHED)["x"].shape == (2, 2)


@pytest.mark.parametrize(
    ("item", "signature", "expected"),
    [
        pytest.param(b"\xff\xd8", PICTURES, b"\xff\xd8", id="bytes"),
        pytest.param(bytearray(b"ab"), PICTURES, b"ab", id="bytearray"),
        pytest.param("grüße", TEXTS, "grüße".encode(), id="text"),
        pytest.param("yes", JSON, b'"yes"', id="a JSON string"),
        pytest.param({"k": [1, None]}, JSON, b'{"k":[1,null]}', id="a JSON object"),
        pytest.param(None, JSON, b"null", id="JSON null"),
        pytest.param({"question": 7}, JSON, b"7", id="a JSON value by input name"),
        pytest.param({"v": np.arange(2)}, JSON, b'{"v":[0,1]}', id="an array in JSON"),
        pytest.param(np.str_("ab"), TEXTS, b"ab", id="a numpy string"),
        pytest.param(b"a\0", TEXTS, b"a\0", id="trailing zero bytes are kept"),
    ],
)
def test_elements_of_bytes(item: Any, signature: Signature, expected: bytes) -> None:
    (tensor,) = encode_item(item, signature).values()

    assert tensor.shape == (1,)
    assert tensor[0] == expected


def test_bytes_with_more_dimensions_are_nested_lists() -> None:
    pairs = signature((Tensor("pair", "BYTES", (-1, 2)),))

    assert encode_items([["a", "b"], ["c", "d"]], pairs)["pair"].tolist() == [
        [b"a", b"b"],
        [b"c", b"d"],
    ]


def integers(datatype: str) -> Signature:
    return signature((Tensor("n", datatype, (-1,)),))


@pytest.mark.parametrize(
    ("item", "signature", "message"),
    [
        pytest.param(1.5, integers("INT64"), "takes INT64, not float64", id="a fraction"),
        pytest.param(300, integers("UINT8"), "takes UINT8, not 300 to 300", id="beyond the range"),
        pytest.param(-1, integers("UINT8"), "takes UINT8", id="a sign"),
        pytest.param(2**64, integers("INT64"), "input n", id="beyond any integer"),
        pytest.param(1, integers("BOOL"), "takes BOOL", id="a number for a truth value"),
        pytest.param("7", integers("INT64"), "takes INT64, not text$", id="text for a number"),
        pytest.param("data/row.npy", ADDER, r"not text.*'data/row\.npy'.*pathlib\.Path", id="a path"),
        pytest.param(b"7", integers("INT64"), "takes INT64, not bytes$", id="bytes for a number"),
        pytest.param([[1, 2, 3], [4, 5, 6]], ADDER, r"takes one item .*shape \[2, 3\].*predict_batch", id="several"),
        pytest.param(None, integers("INT64"), "does not accept null", id="nothing"),
        pytest.param([[1], [2, 3]], ADDER, "different lengths", id="ragged lists"),
        pytest.param(np.ma.masked_greater([1.0, 2.0, 3.0], 2), ADDER, r"mask .*array\.filled", id="a masked array"),
        pytest.param([1.0, np.ma.masked, 3.0], ADDER, "lose its mask", id="a masked element"),
        pytest.param([1e300], ADDER, "overflow", id="beyond float32"),
        pytest.param(7, TEXTS, "takes bytes or str, not int", id="a number for text"),
        pytest.param({1, 2}, JSON, "input question", id="no JSON form"),
        pytest.param([1], TWO, "several inputs.* a, b", id="one value for two inputs"),
        pytest.param({"a": [1, 2]}, TWO, "input b is missing", id="an input missing"),
        pytest.param({"a": [1, 2], "B": 1}, TWO, "no input 'B'; did you mean b", id="a wrong name"),
        pytest.param({"y": [1, 2, 3]}, ADDER, "no input 'y'; did you mean x", id="wrong only name"),
    ],
)
def test_an_item_that_does_not_fit_is_refused_in_the_callers_words(
    item: Any, signature: Signature, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        encode_item(item, signature)


def test_an_array_that_could_have_a_mask_and_has_none_is_an_array() -> None:
    whole = np.ma.masked_greater([1.0, 2.0, 3.0], 9)

    assert encode_item(whole, ADDER)["x"].tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("items", "signature", "message"),
    [
        pytest.param([], ADDER, "at least one item", id="none"),
        pytest.param("text", TEXTS, "takes a list or array of items, not a str", id="one text"),
        pytest.param({"x": [[1, 2, 3]]}, ADDER, "not a dict", id="a dict"),
        pytest.param(iter([[1, 2, 3]]), ADDER, "not a list_iterator", id="an iterator"),
        pytest.param([[1], [1, 2]], ADDER, r"\[1\] and \[2\]", id="different shapes"),
        pytest.param(np.ma.masked_less([[1, 2, 3], [0, 2, 3]], 1), ADDER, "row 1.*lose its mask", id="a masked row"),
        pytest.param([{"ids": [1], "mask": [1]}, {"ids": [1]}], MASKED, "mask is missing in one", id="mask"),
        pytest.param([[[1, 2], [3, 4]]], UNBATCHED, "takes no batches", id="a model of single items"),
        pytest.param([["a"]], signature((Tensor("t", "BYTES", (-1, 1, 1)),)), "levels of lists", id="flat"),
    ],
)
def test_items_that_make_no_batch_are_refused(items: Any, signature: Signature, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        encode_items(items, signature, 0)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        pytest.param([[1, 2, 3], ["a", 2, 3], [1, 2, 3]], "^row 41: input x: takes FP32, not text$", id="text"),
        pytest.param([[1, 2, 3], {"y": 1}], "^row 41: the model has no input 'y'", id="a wrong name"),
        pytest.param([[1, 2, 3], [1, 2, 3], [1, 2]], r"\(row 42 ", id="a shape"),
        pytest.param([1, 2, 3], "predict_batch takes a list of items .*predict ", id="one item"),
    ],
)
def test_the_row_that_does_not_fit_is_named_as_the_caller_knows_it(items: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        encode_items(items, ADDER, 40)
