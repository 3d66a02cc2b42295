import tracemalloc
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from shoal_proxy.codecs.base import MAX_ROWS, DecodedRequest
from shoal_proxy.codecs.v1 import V1
from shoal_proxy.errors import BodyTooLarge, PaddingTooLarge, ProxyError, UnsupportedMediaType
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.elements import bytes_array
from tests.fakes import tensor
from tests.proxy.signatures import call, document, signature

ROWS = signature([tensor("x", "FP32", [-1, 2])], [tensor("y", "FP32", [-1, 2])])
TWO = signature([tensor("a", "INT64", [-1, 2]), tensor("b", "BYTES", [-1])], [tensor("y", "FP32", [-1])])
TEXTS = signature([tensor("t", "BYTES", [-1, 1], content_type="text/plain")])
IMAGES = signature([tensor("image", "BYTES", [-1], content_type="image/jpeg,image/png")])
VALUES = signature(
    [tensor("item", "BYTES", [-1], content_type="application/json")],
    [tensor("y", "BYTES", [-1], content_type="application/json")],
)
TOKENS = signature(
    [
        tensor("ids", "INT64", [-1, -1], pad_axis=1, pad_value=9, pad_mask="mask", pad_buckets="2,4"),
        tensor("mask", "INT64", [-1, -1]),
    ],
    [tensor("labels", "BYTES", [-1, -1], unpad_axis=1, unpad_input="ids")],
)
WORDS = signature([tensor("w", "BYTES", [-1, -1], pad_axis=1)])


def decode(body: Any, model: ModelSignature = ROWS, **headers: str) -> DecodedRequest:
    return V1().decode(call(body, **headers), model)


def refused(body: Any, model: ModelSignature = ROWS, **headers: str) -> str:
    with pytest.raises(ProxyError) as caught:
        decode(body, model, **headers)
    assert 400 <= caught.value.status < 500
    return caught.value.message


def encoded(
    outputs: Mapping[str, Array],
    model: ModelSignature,
    body: Any,
    lengths: Mapping[str, Sequence[int]] | None = None,
) -> Any:
    return document(V1().encode(decode(body, model), outputs, lengths or {}, model))


@pytest.mark.parametrize(
    ("body", "model", "inputs"),
    [
        pytest.param({"instances": [[1, 2], [3, 4]]}, ROWS, {"x": [[1, 2], [3, 4]]}, id="rows"),
        pytest.param({"instances": [{"x": [1, 2]}]}, ROWS, {"x": [[1, 2]]}, id="named rows of one input"),
        pytest.param({"inputs": [[1, 2], [3, 4]]}, ROWS, {"x": [[1, 2], [3, 4]]}, id="the only column"),
        pytest.param({"inputs": {"x": [[1, 2]]}}, ROWS, {"x": [[1, 2]]}, id="a named column"),
        pytest.param({"instances": [{"a": [1, 2], "b": "s"}, {"b": "t", "a": [3, 4]}]}, TWO,
                     {"a": [[1, 2], [3, 4]], "b": [b"s", b"t"]}, id="named rows of two inputs"),
        pytest.param({"inputs": {"a": [[1, 2]], "b": ["s"]}}, TWO, {"a": [[1, 2]], "b": [b"s"]}, id="two columns"),
        pytest.param({"instances": ["s", ["t"]][:1]}, TEXTS, {"t": [[b"s"]]}, id="a text gets its dimension of one"),
        pytest.param({"instances": [["s"], ["t"]]}, TEXTS, {"t": [[b"s"], [b"t"]]}, id="texts in lists of one"),
        pytest.param({"instances": [{"b64": "/w=="}, "s"]}, IMAGES, {"image": [b"\xff", b"s"]}, id="base64 and text"),
        pytest.param({"instances": [{"b64": ""}]}, IMAGES, {"image": [b""]}, id="empty base64"),
        pytest.param({"instances": [{"image": {"b64": "/w=="}}]}, IMAGES, {"image": [b"\xff"]}, id="named base64"),
        pytest.param({"instances": [{"q": [1, None]}, 3, "s"]}, VALUES,
                     {"item": [b'{"q":[1,null]}', b"3", b'"s"']}, id="JSON values"),
        pytest.param({"instances": [{"item": {"q": 1}}]}, VALUES, {"item": [b'{"q":1}']}, id="a named JSON value"),
        pytest.param({"instances": [[1, 2], [3]]}, TOKENS, {"ids": [[1, 2], [3, 9]]}, id="ragged rows"),
        pytest.param({"inputs": {"ids": [[1, 2], [3]]}}, TOKENS, {"ids": [[1, 2], [3, 9]]}, id="a ragged column"),
        pytest.param({"instances": [["a"], ["b", "c"]]}, WORDS, {"w": [[b"a", b""], [b"b", b"c"]]}, id="ragged texts"),
        pytest.param({"instances": [[]], "parameters": {}}, WORDS, None, id="no element at all"),
    ],
)  # fmt: skip
def test_what_the_forms_of_v1_mean(body: Any, model: ModelSignature, inputs: dict[str, Any] | None) -> None:
    if inputs is None:
        assert "has no elements" in refused(body, model)
        return

    decoded = decode(body, model)

    assert {name: array.tolist() for name, array in decoded.inputs.items()} == inputs
    assert decoded.rows == len(next(iter(inputs.values())))


def test_ragged_rows_remember_their_own_lengths() -> None:
    assert decode({"instances": [[1, 2], [3], []]}, TOKENS).lengths == {"ids": [2, 1, 0]}


@pytest.mark.parametrize(
    ("body", "model", "message"),
    [
        pytest.param(b"{", ROWS, "malformed JSON", id="half an object"),
        pytest.param([[1, 2]], ROWS, 'either "instances" (rows) or "inputs"', id="a bare list"),
        pytest.param({}, ROWS, 'either "instances"', id="neither"),
        pytest.param({"instances": [], "inputs": []}, ROWS, 'either "instances"', id="both"),
        pytest.param({"instances": []}, ROWS, "at least one row", id="no rows"),
        pytest.param({"instances": {}}, ROWS, "must be a list", id="instances an object"),
        pytest.param({"instances": "ab"}, ROWS, "must be a list", id="instances a text"),
        pytest.param({"inputs": 5}, ROWS, "list of at least one row", id="a column that is a number"),
        pytest.param({"inputs": {"x": {}}}, ROWS, "list of at least one row", id="a column that is an object"),
        pytest.param({"inputs": {"x": []}}, ROWS, "at least one row", id="an empty column"),
        pytest.param({"inputs": {"z": [[1, 2]]}}, ROWS, "unknown input 'z'", id="an unknown column"),
        pytest.param({"inputs": [1]}, TWO, "must be an object with 'a', 'b'", id="one column for two"),
        pytest.param({"inputs": {"a": [[1, 2]]}}, TWO, "input 'b' is missing", id="a missing column"),
        pytest.param({"inputs": {"a": [[1, 2]], "b": ["s", "t"]}}, TWO, "differ in their number", id="columns differ"),
        pytest.param({"instances": [1, 2]}, TWO, "instance 0 must be an object with 'a', 'b'", id="rows without names"),
        pytest.param({"instances": [{"a": [1, 2], "b": "s"}, {"a": [1, 2]}]}, TWO, "instance 1 has no 'b'",
                     id="a row without an input"),
        pytest.param({"instances": [{"a": [1, 2], "b": "s"}, 3]}, TWO, "instance 1 must be", id="a row that is none"),
        pytest.param({"instances": [{"z": 1}]}, ROWS, "unknown input 'z'", id="a wrong name"),
        pytest.param({"instances": [{}]}, ROWS, "'x' is missing", id="an empty row"),
        pytest.param({"instances": [[1, 2], [3]]}, ROWS, "ragged", id="ragged"),
        pytest.param({"instances": [[1, 2, 3]]}, ROWS, "has shape [1, 3]", id="too wide"),
        pytest.param({"instances": [["1", "2"]]}, ROWS, "only numbers", id="texts for numbers"),
        pytest.param({"instances": [[True, 2]]}, ROWS, "only numbers", id="a boolean for a number"),
        pytest.param({"instances": [[None, 2]]}, ROWS, "'x' does not accept null", id="null"),
        pytest.param({"instances": [3]}, TEXTS, "only strings", id="a number for a text"),
        pytest.param({"instances": [{"b64": "a"}]}, IMAGES, "b64 is not", id="base64 cut short"),
        pytest.param({"instances": [{"b64": "é"}]}, IMAGES, "b64 is not", id="base64 beyond ASCII"),
        pytest.param({"instances": [{"b64": 3}]}, IMAGES, "accepts only strings", id="base64 of a number"),
        pytest.param({"instances": [{"b64": "/w=="}, {"b64": "/w==", "x": 1}]}, IMAGES, "only strings", id="more"),
        pytest.param({"instances": [[1, 2, 3, 4, 5]]}, TOKENS, "the longest allowed is 4", id="longer than any bucket"),
        pytest.param({"instances": [[[1]], [1]]}, TOKENS, "1 dimensions", id="rows of another rank"),
        pytest.param({"instances": [1, 2]}, TOKENS, "1 dimensions", id="scalars for rows"),
    ],
)  # fmt: skip
def test_a_bad_request_gets_a_specific_error(body: Any, model: ModelSignature, message: str) -> None:
    assert message in refused(body, model)


def test_rows_that_differ_beside_the_padded_axis_are_rejected() -> None:
    model = signature([tensor("x", "FP32", [-1, -1, -1], pad_axis=1)])

    assert "row 1 has shape [1, 3], row 0 [1, 2]" in refused({"instances": [[[1, 2]], [[1, 2, 3]]]}, model)


def test_json_values_nested_too_deeply_to_be_sent_on_are_rejected() -> None:
    assert "nested too deeply" in refused(b'{"instances":[%s]}' % (b"[" * 500 + b"]" * 500), VALUES)


def test_responses_come_row_by_row() -> None:
    outputs = {"y": np.array([[1, np.nan], [3, 4]], np.float32)}

    assert encoded(outputs, ROWS, {"instances": [[0, 0]] * 2}) == {"predictions": [[1.0, None], [3.0, 4.0]]}


def test_responses_come_by_column_to_a_client_of_columns() -> None:
    outputs = {"y": np.array([[1, 2]], np.float32)}

    assert encoded(outputs, ROWS, {"inputs": [[0, 0]]}) == {"outputs": [[1.0, 2.0]]}
    assert encoded({**outputs, "z": np.array([True])}, ROWS, {"inputs": [[0, 0]]}) == {
        "outputs": {"y": [[1.0, 2.0]], "z": [True]}
    }


def test_rows_of_several_outputs_are_objects() -> None:
    outputs = {"y": np.array([1.5]), "t": bytes_array([b"\xff"], (1,))}

    assert encoded(outputs, ROWS, {"instances": [[0, 0]]}) == {"predictions": [{"y": 1.5, "t": {"b64": "/w=="}}]}


def test_json_outputs_are_shown_as_json() -> None:
    outputs = {"y": bytes_array([b'{"a":[1]}', b"null"], (2,))}

    assert encoded(outputs, VALUES, {"instances": [1, 2]}) == {"predictions": [{"a": [1]}, None]}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param(bytes_array([b"A", b"B", b"C", b"-"], (2, 2)), [["A", "B"], ["C"]], id="texts"),
        pytest.param(np.array([[1, 2], [3, 0]]), [[1, 2], [3]], id="numbers"),
    ],
)
def test_each_row_is_cut_to_its_own_length(labels: Array, expected: Any) -> None:
    body = {"instances": [[7, 7], [7]]}

    assert encoded({"labels": labels}, TOKENS, body, {"ids": [2, 1]}) == {"predictions": expected}


class TestAModelThatDoesNotBatch:
    @pytest.mark.parametrize(
        ("datatype", "shape", "value"),
        [
            pytest.param("FP32", [2], [1.0, 2.0], id="numbers"),
            pytest.param("BYTES", [1], ["s"], id="a text in a list"),
            pytest.param("BYTES", [1], "s", id="a text"),
            pytest.param("BYTES", [1], {"b64": b64encode(b"s").decode()}, id="base64"),
            pytest.param("INT64", [], 3, id="a scalar"),
            pytest.param("BYTES", [], "s", id="a scalar text"),
        ],
    )
    @pytest.mark.parametrize("form", ["instances", "inputs"])
    def test_takes_one_instance(self, form: str, datatype: str, shape: list[int], value: Any) -> None:
        model = signature([tensor("x", datatype, shape)], [tensor("y", "FP32", [2])])

        decoded = decode({form: [value] if form == "instances" else value}, model)

        assert isinstance(decoded.inputs["x"], np.ndarray)
        assert (list(decoded.inputs["x"].shape), decoded.rows) == (shape, 1)
        reply = V1().encode(decoded, {"y": np.array([1, 2])}, {}, model)
        assert document(reply) in ({"predictions": [[1, 2]]}, {"outputs": [1, 2]})

    def test_rejects_two(self) -> None:
        model = signature([tensor("x", "FP32", [2])], [tensor("y", "FP32", [2])])

        assert "not 2" in refused({"instances": [[1, 2], [3, 4]]}, model)


class TestRawBodies:
    @pytest.mark.parametrize(
        ("model", "media_type"),
        [
            pytest.param(IMAGES, "image/jpeg", id="one of two types"),
            pytest.param(IMAGES, "IMAGE/PNG; q=1", id="any case, with parameters"),
            pytest.param(IMAGES, "application/octet-stream", id="octets for images"),
            pytest.param(TEXTS, "text/plain", id="text"),
            pytest.param(signature([tensor("i", "BYTES", [-1], content_type="image/*")]), "image/webp", id="image/*"),
            pytest.param(signature([tensor("i", "BYTES", [-1], content_type="*/*")]), "video/mp4", id="anything"),
            pytest.param(signature([tensor("i", "BYTES", [-1])]), "video/mp4", id="no type declared"),
        ],
    )
    def test_become_one_row(self, model: ModelSignature, media_type: str) -> None:
        decoded = decode(b"data", model, content_type=media_type)

        (array,) = decoded.inputs.values()
        assert (array.ravel().tolist(), decoded.rows) == ([b"data"], 1)
        assert array.ndim == len(next(iter(model.inputs.values())).shape)

    @pytest.mark.parametrize(
        ("model", "media_type", "message"),
        [
            pytest.param(IMAGES, "image/gif", "image/jpeg or image/png", id="another type"),
            pytest.param(TEXTS, "application/octet-stream", "expected text/plain", id="octets for text"),
            pytest.param(ROWS, "image/png", "no single BYTES input", id="a model of numbers"),
            pytest.param(TWO, "image/png", "no single BYTES input", id="a model of two inputs"),
            pytest.param(signature([tensor("t", "BYTES", [-1, 2])]), "text/plain", "no single BYTES", id="rows of two"),
            pytest.param(
                signature([tensor("t", "BYTES", [3])]), "text/plain", "no single BYTES", id="three texts, not batched"
            ),
        ],
    )
    def test_of_a_type_that_the_model_does_not_accept_are_rejected(
        self, model: ModelSignature, media_type: str, message: str
    ) -> None:
        with pytest.raises(UnsupportedMediaType) as caught:
            decode(b"data", model, content_type=media_type)

        assert caught.value.status == 415
        assert message in caught.value.message

    def test_must_not_be_empty(self) -> None:
        assert "the body is empty" in refused(b"", IMAGES, content_type="image/png")

    def test_of_text_must_be_utf8(self) -> None:
        assert "not UTF-8 text: invalid start byte at byte 1" in refused(b"a\xff", TEXTS, content_type="text/plain")

    @pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "application/vnd.x+json", ""])
    def test_are_not_what_json_bodies_are(self, media_type: str) -> None:
        assert decode({"instances": [[1, 2]]}, ROWS, content_type=media_type).rows == 1


RAGGED = signature([tensor("ids", "INT64", [-1, -1], pad_axis=1)], [tensor("y", "FP32", [-1])])


@pytest.mark.parametrize("form", ["instances", "inputs"])
def test_padding_is_bounded_before_it_is_made(form: str) -> None:
    body = {form: [[1]] * 5000 + [[1] * 50_000]}
    tracemalloc.start()
    try:
        with pytest.raises(
            PaddingTooLarge, match=r"padding 5001 rows to the longest, 50000, would add 1999960000 bytes"
        ):
            decode(body, RAGGED)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_padding_of_some_hundred_megabytes_is_too_much_unless_requested() -> None:
    with pytest.raises(PaddingTooLarge, match="would add 119997600 bytes"):
        decode({"instances": [[1]] * 300 + [[1] * 50_000]}, RAGGED)


def test_a_long_row_among_as_many_as_fit_is_padded() -> None:
    body = {"instances": [[1], [1, 2, 3]]}

    assert V1(16).decode(call(body), RAGGED).rows == 2
    with pytest.raises(PaddingTooLarge, match="at most 15 are allowed") as caught:
        V1(15).decode(call(body), RAGGED)
    assert caught.value.status == 413
    assert V1(0).decode(call({"instances": [[1, 2], [3, 4]]}), RAGGED).rows == 2, (
        "what is not padded costs nothing more"
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"instances":[' + b"[1]," * (1 << 20) + b"[1]]}", "binary tensors"),
        (b'{"instances":[' + b"1," * (9 << 20) + b"1]}", "binary tensors"),
        (b'{"inputs":[' + b"1," * MAX_ROWS + b"1]}", "262144"),
        (b'{"instances":[' + b"1," * MAX_ROWS + b"1]}", "262144"),
    ],
)
def test_a_body_of_too_many_values_is_rejected_before_they_are_made(body: bytes, said: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge, match=said):
            V1().decode(call(body), signature(inputs=[tensor("x", "FP32", [-1])]))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 << 20
