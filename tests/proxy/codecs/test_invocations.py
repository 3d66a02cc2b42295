"""``POST /invocations``: tables, instances, inputs and CSV, as MLflow's and SageMaker's clients write them."""

from typing import Any

import numpy as np
import orjson
import pytest

from shoal_proxy.codecs.base import MAX_LISTS, DecodedRequest
from shoal_proxy.codecs.invocations import Invocations
from shoal_proxy.errors import (
    BodyTooLarge,
    Draining,
    InvalidRequest,
    ModelFailed,
    NotFound,
    ProxyError,
    UnsupportedMediaType,
)
from shoal_proxy.model.signature import ModelSignature
from tests.fakes import tensor
from tests.proxy.signatures import call, document, signature

VECTORS = signature([tensor("x", "FP32", [-1, 2], columns='["a", "b"]')], [tensor("y", "FP32", [-1, 1])])
NAMELESS = signature([tensor("x", "FP32", [-1, 2])], [tensor("y", "FP32", [-1, 1])])
COLUMNS = signature(
    [
        tensor("age", "INT64", [-1]),
        tensor("height", "FP64", [-1, 1], nullable=True),
        tensor("name", "BYTES", [-1, 1]),
        tensor("member", "BOOL", [-1], optional=True),
    ]
)
NUMBER = signature([tensor("x", "FP32", [-1])])
TEXTS = signature([tensor("text", "BYTES", [-1], content_type="text/plain")])
PEOPLE = [{"age": 7, "height": 1.25, "name": "Ann"}, {"age": 8, "height": None, "name": "Bo"}]


def decode(body: Any, model: ModelSignature, media_type: str = "application/json") -> DecodedRequest:
    return Invocations(1 << 20).decode(call(body, content_type=media_type), model)


def csv(text: str, model: ModelSignature = VECTORS) -> dict[str, Any]:
    return {
        name: array.tolist() for name, array in decode(text.encode(), model, "text/csv; charset=utf-8").inputs.items()
    }


def split(columns: list[Any], *data: list[Any]) -> dict[str, Any]:
    return {"dataframe_split": {"columns": columns, "index": list(range(len(data))), "data": list(data)}}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(split(["a", "b"], [1, 2.5], [3, 4]), id="split"),
        pytest.param(split(["b", "a"], [2.5, 1], [4, 3]), id="split in another order"),
        pytest.param(split([0, 1], [1, 2.5], [3, 4]), id="split with numbers for names"),
        pytest.param(split(["b", "id", "a"], [2.5, "r1", 1], [4, None, 3]), id="split with a column more"),
        pytest.param({"dataframe_split": {"data": [[1, 2.5], [3, 4]]}}, id="split without names"),
        pytest.param(split(["x"], [[1, 2.5]], [[3, 4]]), id="split of one column of lists"),
        pytest.param({"dataframe_records": [{"a": 1, "b": 2.5}, {"b": 4, "a": 3}]}, id="records"),
        pytest.param({"dataframe_records": [{"0": 1, "1": 2.5}, {"1": 4, "0": 3}]}, id="records with numbers"),
        pytest.param({"instances": [[1, 2.5], [3, 4]]}, id="instances"),
        pytest.param({"instances": [{"a": 1, "b": 2.5}, {"b": 4, "a": 3}]}, id="instances that are objects"),
        pytest.param({"inputs": {"b": [2.5, 4], "a": [1, 3]}}, id="columns"),
        pytest.param({"inputs": {"b": [[2.5], [4]], "a": [1, 3]}}, id="columns of lists of one"),
        pytest.param({"instances": [{"x": [1, 2.5]}, {"x": [3, 4]}]}, id="named instances"),
        pytest.param({"inputs": [[1, 2.5], [3, 4]]}, id="inputs"),
        pytest.param({"inputs": {"x": [[1, 2.5], [3, 4]]}}, id="named inputs"),
    ],
)
def test_every_form_gives_the_same_rows(body: Any) -> None:
    decoded = decode(body, VECTORS)
    assert decoded.inputs["x"].tolist() == [[1, 2.5], [3, 4]]
    reply = Invocations(0).encode(decoded, {"y": np.array([[1], [2]], np.float32)}, {}, VECTORS)
    assert document(reply) == {"predictions": [[1.0], [2.0]]}


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_records": PEOPLE},
        split(["name", "height", "age"], ["Ann", 1.25, 7], ["Bo", None, 8]),
    ],
)
def test_columns_that_are_named_as_inputs_are_those(body: Any) -> None:
    inputs = decode(body, COLUMNS).inputs
    assert inputs["age"].tolist() == [7, 8]
    assert inputs["name"].tolist() == [[b"Ann"], [b"Bo"]]
    np.testing.assert_array_equal(inputs["height"], [[1.25], [np.nan]])


def test_one_column_is_the_models_one_input_by_its_name_or_by_none() -> None:
    for name in ("x", 0, "0"):
        assert decode(split([name], [1], [2]), NUMBER).inputs["x"].tolist() == [1, 2]
    assert decode({"dataframe_records": [{"text": "good"}]}, TEXTS).inputs["text"].tolist() == [b"good"]
    with pytest.raises(InvalidRequest, match="input 'text' is missing"):
        decode({"dataframe_records": [{"review": "good"}]}, TEXTS)


@pytest.mark.parametrize(
    "body", [split(["a", "b"], [1, 2]), split(["b", "a"], [1, 2]), {"dataframe_records": [{"b": 1, "a": 2}]}]
)
def test_names_that_the_model_does_not_have_are_never_matched_by_position(body: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"'[ab]', '[ab]' .*model\.toml"):
        decode(body, NAMELESS)
    for same in (split([0, 1], [1, 2]), {"dataframe_split": {"data": [[1, 2]]}}, {"instances": [[1, 2]]}):
        assert decode(same, NAMELESS).inputs["x"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2.5\n3,4\n",
        "b,a\n2.5,1\n4,3\n",
        ",b,a\n0,2.5,1\n1,4,3\n",
        '"a","b"\n"1",2.5\n\n3,4\n',
        "\ufeffa,b\n1,2.5\n3,4\n",
    ],
)
def test_csv_is_read_with_a_first_line_of_names(text: str) -> None:
    assert csv(text) == {"x": [[1, 2.5], [3, 4]]}


@pytest.mark.parametrize("text", ["1,2.5\r\n3,4", "\ufeff1,2.5\n3,4\n"])
def test_csv_is_read_without_a_first_line_of_names(text: str) -> None:
    assert csv(text, NAMELESS) == {"x": [[1, 2.5], [3, 4]]}


def test_csv_names_the_inputs_of_a_model_that_has_several() -> None:
    read = csv('name,age,height,member\n"Ann, B.",7,,true\n"Bo\nC.",8,2,False\n', COLUMNS)
    assert read["name"] == [[b"Ann, B."], [b"Bo\nC."]]
    assert (read["age"], read["member"]) == ([7, 8], [True, False])
    np.testing.assert_array_equal(read["height"], [[np.nan], [2]])


def test_csv_of_texts_has_a_first_line_of_names() -> None:
    assert csv("text\ngood\nbad\n", TEXTS) == {"text": [b"good", b"bad"]}


def test_csv_is_a_row_itself_for_a_model_that_accepts_csv() -> None:
    model = signature([tensor("table", "BYTES", [-1], content_type="text/csv")])
    assert csv("a,b\n1,2\n", model) == {"table": [b"a,b\n1,2\n"]}


def test_a_raw_body_is_one_row() -> None:
    assert decode(b"good", TEXTS, "text/plain").inputs["text"].tolist() == [b"good"]
    with pytest.raises(UnsupportedMediaType):
        decode(b"GIF", VECTORS, "image/gif")


def test_params_reach_the_model() -> None:
    decoded = decode({"instances": [[1, 2]], "params": {"temperature": 0.5, "timeout": 2000}}, VECTORS)
    assert (orjson.loads(decoded.parameters), decoded.timeout_ms) == ({"temperature": 0.5}, 2.0)


@pytest.mark.parametrize(
    ("body", "model", "words"),
    [
        ([], VECTORS, "an object with one of 'dataframe_split'"),
        ({"instances": [[1, 2]], "inputs": [[1, 2]]}, VECTORS, "an object with one of 'dataframe_split'"),
        ({"dataframe_split": []}, VECTORS, '"dataframe_split" must be'),
        (split(["a", "b"]), VECTORS, '"dataframe_split" must be'),
        (split(["a", "b"], [1, 2], [3]), VECTORS, "row 1 must be a list of 2 values"),
        ({"dataframe_records": {}}, VECTORS, '"dataframe_records" must be'),
        ({"dataframe_records": [{"a": 1}, {"b": 1}]}, VECTORS, "instance 0 has no 'b'"),
        ({"dataframe_records": [{"a": 1}]}, VECTORS, "column 'b' is missing"),
        ({"dataframe_records": [{"a": 1, "B": 2}]}, VECTORS, "column 'b' is missing; the request has 'B' instead"),
        ({"dataframe_records": [{"a": 1, "b": "2"}]}, VECTORS, "'x' is FP32"),
        ({"dataframe_records": [{"0": 1, "1": 2, "2": 3}]}, VECTORS, "'x' has shape [1, 3]"),
        ({"instances": [{"x": [1, 2], "a": 3}]}, VECTORS, "column 'a' is given twice"),
        (split(["age", "name", "age"], [1, "a", 2]), COLUMNS, "has a column twice: 'age'"),
        (split([1.5], [1]), COLUMNS, "name must be"),
        ({"dataframe_split": {"data": [[1, 2]]}}, COLUMNS, "need column names"),
        ({"dataframe_split": {"data": [[]]}}, VECTORS, "no columns"),
        (split(["x", "x"], [1, 2]), NUMBER, "has a column twice"),
        (split(["age", "weight"], [1, 2]), COLUMNS, "inputs 'height', 'name' are missing"),
        (split(["age", "name"], [1, "a"]), COLUMNS, "'height' is missing"),
        (split(["age", "height", "name"], [None, 1, "a"]), COLUMNS, "'age' does not accept null (row 0)"),
        (split(["a", "b"], [1, 2], [3, None]), VECTORS, "'x' does not accept null (row 1, column 'b')"),
        (split(["a", "b"], ["x", "y"]), TEXTS, "input 'text' is missing"),
        ({"instances": [[1, 2]], "params": []}, VECTORS, "parameters must be an object"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(body: Any, model: ModelSignature, words: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode(body, model)
    assert words in raised.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the CSV has no rows"),
        ("a,b\n", "at least one row"),
        ("a,b\n1,2\n3\n", "row 1 has 1 values, not 2"),
        ("a,b\n1,two\n", "'x' is FP32 and cannot be 'two'"),
        ("a,b\n1,1_0\n", "cannot be '1_0'"),
        ("a,b\n1,1e400\n", "'1e400' is out of its range"),
        ("a,b\n1," + "9" * 400 + "\n", "FP32"),
        ("a,b\n1,1e39\n", "outside the range of FP32"),
        ('a,b\n1,"2\n', "the body is not CSV"),
        ('a,b\n1,"' + "2" * 200_000 + '"\n', "the body is not CSV"),
    ],
)
def test_what_is_wrong_with_csv_is_named(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        csv(text)
    assert words in raised.value.message


def test_rows_of_csv_are_counted_however_they_end() -> None:
    with pytest.raises(BodyTooLarge):
        csv("1\r" * (MAX_LISTS + 1))


@pytest.mark.parametrize("media_type", ["", "application/x-www-form-urlencoded"])
def test_csv_without_its_media_type_gets_a_hint(media_type: str) -> None:
    with pytest.raises(InvalidRequest, match=r"malformed JSON.*Content-Type: text/csv"):
        decode(b"a,b\n1,2\n", VECTORS, media_type)


def test_csv_that_is_no_text_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="not CSV"):
        decode(b"\xff\xfe1,2", VECTORS, "text/csv")


@pytest.mark.parametrize("text", ["1,2\n" * 300_000, "," * 9_000_000])
def test_csv_of_too_many_rows_or_values_is_rejected_before_it_is_read(text: str) -> None:
    with pytest.raises(BodyTooLarge):
        csv(text)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("m"), "BAD_REQUEST"),
        (NotFound("m"), "RESOURCE_DOES_NOT_EXIST"),
        (ModelFailed("m"), "INTERNAL_ERROR"),
        (Draining("m"), "TEMPORARILY_UNAVAILABLE"),
    ],
)
def test_errors_have_mlflows_shape(error: ProxyError, code: str) -> None:
    reply = Invocations(0).error(error)
    assert (reply.status, document(reply)) == (error.status, {"error_code": code, "message": "m"})
