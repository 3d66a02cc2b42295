from typing import Any, ClassVar

import numpy as np
import orjson
import pytest

from shoal_proxy.codecs.base import DecodedRequest, InferCall
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.errors import InvalidRequest, ModelFailed, ProxyError, RowsFailed, UnsupportedMediaType
from shoal_schema.wire.elements import bytes_array
from shoal_schema.wire.row_errors import RowError
from tests.fakes import tensor
from tests.proxy.signatures import call, document, header_length, signature

MODEL = signature()
TWO = signature([tensor("a", "INT64", [-1, 2]), tensor("b", "BYTES", [-1])], [tensor("y", "FP32", [-1])])
X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
A = {"name": "a", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}
B = {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["t"]}


def x(**changes: Any) -> dict[str, Any]:
    """Return a good request whose only input is changed; None drops a key."""
    return {"inputs": [{key: value for key, value in {**X, **changes}.items() if value is not None}]}


def refused(body: Any, model: Any = MODEL, **headers: str) -> str:
    with pytest.raises(ProxyError) as caught:
        V2().decode(call(body, **headers), model)
    assert caught.value.status == 400
    return caught.value.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"", "malformed JSON", id="nothing"),
        pytest.param(b"{", "malformed JSON", id="half an object"),
        pytest.param(b'{"inputs": NaN}', "malformed JSON", id="NaN"),
        pytest.param(b'{"inputs": 1e999}', "malformed JSON", id="infinity"),
        pytest.param(b'"\\ud800"', "malformed JSON", id="half a surrogate pair"),
        pytest.param(b"\xff\xfe", "malformed JSON", id="not UTF-8"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, "malformed JSON", id="a hundred thousand levels"),
        pytest.param([], 'an object with a list "inputs"', id="a list"),
        pytest.param(3, 'an object with a list "inputs"', id="a number"),
        pytest.param({}, 'an object with a list "inputs"', id="no inputs"),
        pytest.param({"inputs": {}}, 'an object with a list "inputs"', id="inputs an object"),
        pytest.param({"inputs": []}, "'x' is missing", id="inputs empty"),
        pytest.param({"inputs": [1]}, "must be an object with name, datatype and shape, not 1", id="an input a number"),
        pytest.param({"inputs": [None]}, "not None", id="an input null"),
        pytest.param(x(name="z"), "unknown input 'z'; input 'x' is missing", id="a wrong name"),
        pytest.param(x(name=["x"]), "unknown input", id="a name that is a list"),
        pytest.param(x(datatype="FP64"), "'x' is FP32, not 'FP64'", id="a wrong datatype"),
        pytest.param(x(datatype=None), "'x' is FP32, not None", id="no datatype"),
        pytest.param(x(shape=None), "shape must be a list of sizes, not None", id="no shape"),
        pytest.param(x(shape="1,4"), "shape must be a list of sizes", id="a shape as text"),
        pytest.param(x(shape=[-1, 4]), "shape must be a list of sizes", id="a negative size"),
        pytest.param(x(shape=[True, 4]), "shape must be a list of sizes", id="a boolean size"),
        pytest.param(x(shape=[1.0, 4]), "shape must be a list of sizes", id="a float size"),
        pytest.param(x(shape=[1, 5]), r"has shape [1, 5]", id="a wrong shape"),
        pytest.param(x(shape=[4]), r"has shape [4]", id="too few dimensions"),
        pytest.param(x(shape=[0, 4], data=[]), "has no rows", id="no rows"),
        pytest.param(x(shape=[2, 4]), "has 4 values", id="too few values"),
        pytest.param(x(data=[[1, 2], [3, 4]]), "data of shape [2, 2]", id="nested otherwise than its shape"),
        pytest.param(x(data=[[1, 2, 3, 4], [1]], shape=[2, 4]), "ragged", id="ragged rows"),
        pytest.param(x(shape=[2**40, 4]), "4398046511104", id="a huge shape"),
        pytest.param(x(shape=[2**63, 4]), "but its shape", id="a shape beyond 64 bits"),
        pytest.param(x(data=None), "either data or a binary_data_size", id="neither data nor binary"),
        pytest.param(x(data={"a": 1}), "only numbers", id="data an object"),
        pytest.param(x(parameters=3), "parameters must be an object", id="an input's parameters a number"),
        pytest.param(x(parameters={"binary_data_size": 16}), "either data or", id="both data and binary"),
        pytest.param(x(data=None, parameters={"binary_data_size": 16}), "needs the header", id="binary without header"),
        pytest.param({"inputs": [X, X]}, "'x' is given twice", id="an input twice"),
        pytest.param({**x(), "parameters": 3}, "parameters must be an object", id="parameters a number"),
        pytest.param({**x(), "parameters": []}, "parameters must be an object", id="parameters an empty list"),
        pytest.param({**x(), "parameters": {"timeout": "x"}}, "timeout must be a positive number", id="timeout a text"),
        pytest.param({**x(), "parameters": {"timeout": 0}}, "timeout must be a positive", id="timeout zero"),
        pytest.param({**x(), "parameters": {"timeout": True}}, "timeout must be a positive", id="timeout a boolean"),
        pytest.param({**x(), "parameters": {"binary_data_output": "no"}}, "true or false, not 'no'", id="flag a text"),
        pytest.param({**x(), "outputs": {}}, '"outputs" must be a list', id="outputs an object"),
        pytest.param({**x(), "outputs": [None]}, "must be an object with a name, not None", id="an output null"),
        pytest.param({**x(), "outputs": ["y"]}, "must be an object with a name, not 'y'", id="an output a text"),
        pytest.param({**x(), "outputs": [{"name": "z"}]}, "unknown output 'z'", id="no output z"),
        pytest.param({**x(), "outputs": [{"name": "y"}] * 2}, "requested twice", id="an output twice"),
        pytest.param({**x(), "outputs": [{"name": "y", "parameters": "a"}]}, "must be an object", id="its parameters"),
        pytest.param(
            {**x(), "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "true or false", id="binary_data 1"
        ),
        pytest.param({**x(), "id": 7}, "id must be a string, not 7", id="an id that is a number"),
    ],
)  # fmt: skip
def test_a_bad_request_gets_a_specific_error(body: Any, message: str) -> None:
    assert message in refused(body)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        pytest.param([A], "input 'b' is missing", id="one of two"),
        pytest.param([A, {**B, "shape": [2], "data": ["t", "u"]}], "differ in their number of rows", id="rows differ"),
    ],
)
def test_inputs_must_be_complete_and_agree(inputs: list[Any], message: str) -> None:
    assert message in refused({"inputs": inputs}, TWO)


@pytest.mark.parametrize("shape", [[2**40, 0], [2**63, 0], [1, 0]])
def test_rows_without_elements_are_rejected_before_they_cost_anything(shape: list[int]) -> None:
    model = signature([tensor("x", "FP32", [-1, -1])])

    assert "has no elements" in refused(x(shape=shape, data=[]), model)


def test_a_request_needs_an_input_even_where_all_are_optional() -> None:
    model = signature([tensor("x", "FP32", [-1, 4], optional=True)])

    assert "the request has no input" in refused({"inputs": []}, model)


@pytest.mark.parametrize("where", ["parameters", "tensor", "output"])
def test_parameters_nested_deeper_than_can_be_sent_on_are_rejected(where: str) -> None:
    deep = b"[" * 500 + b"]" * 500
    tensor_parameters = b',"parameters":{"p":%s}' % deep
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]%s}]%s}' % (
        tensor_parameters if where == "tensor" else b"",
        {"parameters": tensor_parameters, "output": b',"outputs":[{"name":"y"%s}]' % tensor_parameters}.get(where, b""),
    )

    assert "nested too deeply" in refused(body)


@pytest.mark.parametrize("key", ["name", "datatype", "shape", "id"])
def test_deep_and_long_values_are_shown_short(key: str) -> None:
    deep = b"[" * 1000 + b"]" * 1000
    long = b'"%s"' % (b"a" * 100_000)
    for value in (deep, long):
        entry = {**X, key: "@"} if key != "id" else X
        body = orjson.dumps({"inputs": [entry], **({"id": "@"} if key == "id" else {})}).replace(b'"@"', value)
        if key == "id" and value is long:
            continue
        assert len(refused(body)) < 1000


BINARY = np.array([[1, 2, 3, 4]], "<f4").tobytes()


def binary_body(tail: bytes = BINARY, **parameters: Any) -> tuple[bytes, str]:
    header = orjson.dumps(x(data=None, parameters={"binary_data_size": 16, **parameters}))
    return header + tail, str(len(header))


@pytest.mark.parametrize(
    "length",
    ["", "-1", "1e2", "1.0", "+5", " 5", "0x10", "1_0", "99999", "9" * 5000, "²", "nan"],
)
def test_a_header_length_that_lies_is_rejected(length: str) -> None:
    message = refused(binary_body()[0], inference_header_content_length=length)

    assert "Inference-Header-Content-Length" in message or "malformed JSON" in message


@pytest.mark.parametrize("shift", [-1, 1, -50])
def test_a_header_length_that_cuts_the_json_is_rejected(shift: int) -> None:
    body, length = binary_body()

    assert "malformed JSON" in refused(body, inference_header_content_length=str(int(length) + shift))


@pytest.mark.parametrize(
    ("size", "tail", "message"),
    [
        pytest.param(12, BINARY, "16 bytes, not 12", id="too small"),
        pytest.param(20, BINARY, "binary_data_size is 20, but 16 bytes are left", id="too large"),
        pytest.param(2**63, BINARY, "but 16 bytes are left", id="huge"),
        pytest.param(-16, BINARY, "binary_data_size is -16", id="negative"),
        pytest.param(16.0, BINARY, "binary_data_size is 16.0", id="a float"),
        pytest.param("16", BINARY, "binary_data_size is '16'", id="a text"),
        pytest.param(True, BINARY, "binary_data_size is True", id="a boolean"),
        pytest.param(None, BINARY, "either data or a binary_data_size", id="missing"),
        pytest.param(16, BINARY[:-1], "but 15 bytes are left", id="a tail cut short"),
        pytest.param(16, BINARY + b"!", "adds up to 16, but 17 bytes follow", id="bytes left over"),
    ],
)
def test_a_binary_size_that_lies_is_rejected(size: Any, tail: bytes, message: str) -> None:
    body, length = binary_body(tail, binary_data_size=size)

    assert message in refused(body, inference_header_content_length=length)


def test_narrow_numbers_are_accepted_where_the_model_states_wide_ones_and_are_the_same() -> None:
    wide = signature([tensor("x", "FP64", [-1, 4])], [tensor("y", "FP64", [-1])])
    header = orjson.dumps(x(data=None, parameters={"binary_data_size": 16}))
    codec, numbers = V2(), np.array([0.1, 1, 2, 3], np.float32)

    # The second is like the first, whose header may be known by then.
    for sent in (numbers, numbers + 1):
        made = codec.decode(call(header + sent.tobytes(), inference_header_content_length=str(len(header))), wide)
        assert made.inputs["x"].dtype == np.float64
        assert made.inputs["x"].tolist() == [sent.astype(np.float64).tolist()]
    assert codec.decode(call(x(data=[0.1, 1, 2, 3])), wide).inputs["x"].tolist() == [[0.1, 1, 2, 3]]
    assert "'x' is FP64, not 'FP16'" in refused(x(datatype="FP16"), wide)


def test_huge_binary_shapes_are_rejected_by_arithmetic() -> None:
    header = orjson.dumps(x(shape=[2**60, 4], data=None, parameters={"binary_data_size": 16}))

    assert "bytes, not 16" in refused(header + BINARY, inference_header_content_length=str(len(header)))


def decode(body: Any, model: Any = MODEL, **headers: str) -> DecodedRequest:
    return V2().decode(call(body, **headers), model)


def test_parameters_are_forwarded_and_equal_ones_have_equal_text() -> None:
    one = decode({**x(), "parameters": {"b": 1, "a": "s", "timeout": 2500, "binary_data_output": False}})
    two = decode({**x(), "parameters": {"a": "s", "b": 1}})
    other = decode({**x(), "parameters": {"a": "s", "b": 2}})

    assert one.parameters == two.parameters == b'{"a":"s","b":1}'
    assert other.parameters != one.parameters
    assert (one.timeout_ms, two.timeout_ms) == (2.5, None)


def test_parameters_of_single_tensors_is_part_of_the_key() -> None:
    decoded = decode({**x(parameters={"resize": True}), "outputs": [{"name": "y", "parameters": {"top": 3}}]})

    assert orjson.loads(decoded.tensors) == {
        "inputs": {"x": {"resize": True}},
        "outputs": {"y": {"top": 3}},
    }


def test_a_plain_request_requests_nothing_special() -> None:
    decoded = decode(x())

    assert (decoded.rows, decoded.parameters, decoded.tensors, decoded.timeout_ms) == (1, b"", b"", None)


def test_a_model_without_inputs_reports_it() -> None:
    with pytest.raises(InvalidRequest, match="no input"):
        V2().decode(call({"inputs": []}), signature(inputs=[]))


class TestAnswers:
    model = signature(outputs=[tensor("y", "FP32", [-1, 2]), tensor("t", "BYTES", [-1])])
    outputs: ClassVar = {"y": np.array([[1, np.nan]], np.float32), "t": bytes_array([b"hi"], (1,))}

    def answer(self, **asked: Any) -> tuple[dict[str, Any], bytes]:
        decoded = decode({**x(), **asked}, self.model)
        reply = V2().encode(decoded, self.outputs, {}, self.model)
        body = b"".join(reply.body)
        return document(reply), body[header_length(reply) :]

    def test_without_a_wish_all_outputs_come_as_json(self) -> None:
        assert self.answer() == (
            {
                "model_name": "m",
                "model_version": "1",
                "outputs": [
                    {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, None]},
                    {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["hi"]},
                ],
            },
            b"",
        )

    def test_only_the_outputs_requested_come_in_the_order_requested(self) -> None:
        names = [[one["name"] for one in self.answer(outputs=[{"name": n} for n in wish])[0]["outputs"]]
                 for wish in (["t"], ["t", "y"])]  # fmt: skip

        assert names == [["t"], ["t", "y"]]

    def test_the_id_comes_back(self) -> None:
        assert self.answer(id="é1")[0]["id"] == "é1"
        assert "id" not in self.answer()[0]

    def test_each_output_may_be_binary(self) -> None:
        answer, tail = self.answer(outputs=[{"name": "y", "parameters": {"binary_data": True}}, {"name": "t"}])

        assert answer["outputs"][0]["parameters"] == {"binary_data_size": 8}
        assert answer["outputs"][1]["data"] == ["hi"]
        assert tail == self.outputs["y"].tobytes()

    def test_all_may_be_binary_but_for_the_one_that_does_not_allow_it(self) -> None:
        answer, tail = self.answer(
            parameters={"binary_data_output": True},
            outputs=[{"name": "y", "parameters": {"binary_data": False}}, {"name": "t"}],
        )

        assert answer["outputs"][0]["data"] == [1.0, None]
        assert tail == b"\x02\x00\x00\x00hi"

    def test_an_output_that_the_runtime_left_out_is_its_fault(self) -> None:
        decoded = decode({**x(), "outputs": [{"name": "t"}]}, self.model)

        with pytest.raises(ModelFailed, match="missing"):
            V2().encode(decoded, {"y": self.outputs["y"]}, {}, self.model)

    def test_an_output_that_differs_from_its_declaration_states_what_it_is(self) -> None:
        reply = V2().encode(decode(x(), self.model), {"y": bytes_array([b"0.9:1:cat"], (1,))}, {}, self.model)

        assert document(reply)["outputs"] == [{"name": "y", "datatype": "BYTES", "shape": [1], "data": ["0.9:1:cat"]}]

    def test_half_precision_and_bfloat16_come_as_numbers(self) -> None:
        model = signature(outputs=[tensor("h", "FP16", [-1]), tensor("b", "BF16", [-1])])
        outputs = {"h": np.array([0.5], np.float16), "b": np.array([0x3FC0], np.uint16)}

        answer = document(V2().encode(decode(x(), model), outputs, {}, model))

        assert [(one["datatype"], one["data"]) for one in answer["outputs"]] == [("FP16", [0.5]), ("BF16", [1.5])]


def test_an_error_names_the_rows_that_failed() -> None:
    reply = V2().error(RowsFailed([RowError(3, 422, "too dark")]))

    assert reply.status == 422
    assert document(reply) == {
        "error": "row 3: too dark",
        "errors": [{"row": 3, "status": 422, "message": "too dark"}],
    }


def test_a_raw_body_to_a_model_of_numbers_is_an_unsupported_media_type() -> None:
    with pytest.raises(UnsupportedMediaType, match="image/png"):
        V2().decode(InferCall({b"content-type": b"image/png"}, b"\x89PNG"), MODEL)


def test_a_model_that_does_not_batch_takes_its_own_shape_only() -> None:
    model = signature([tensor("x", "FP32", [3])], [tensor("y", "FP32", [3])])

    assert decode(x(shape=[3], data=[1, 2, 3]), model).rows == 1
    with pytest.raises(InvalidRequest, match=r"has shape \[1\].*\[3\]"):
        decode(x(shape=[1], data=[1]), model)
