from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from shoal_proxy.batching.batch import Batch, BatchResult, make_batch
from shoal_proxy.batching.pending import BatchKey, PendingRequest, RequestSlice
from shoal_proxy.codecs.upstream import check_json, decode_failure, decode_result, encode_batch
from shoal_proxy.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    NotExecuted,
    ProxyError,
    RuntimeBusy,
    RuntimeLost,
)
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.elements import bytes_array
from shoal_schema.wire.row_errors import RowError
from tests.fakes import tensor
from tests.proxy.signatures import request, signature

MODEL = signature(outputs=[tensor("y", "FP32", [-1, 2]), tensor("t", "BYTES", [-1]), tensor("b", "BF16", [-1])])
Y = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


def batch_of(*pendings: PendingRequest) -> Batch:
    return make_batch([RequestSlice(pending, 0, pending.rows, pending.inputs) for pending in pendings])


def sent(inputs: Mapping[str, Array], model: Any = MODEL, *, binary: bool = True, **asked: bytes) -> tuple[Any, bytes]:
    pending = request(inputs, key=BatchKey(**asked))  # type: ignore[arg-type]
    header, tail = encode_batch(batch_of(pending), inputs, model, binary=binary)
    return orjson.loads(header), b"".join(tail)


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_rows_in_several_arrays_are_sent_as_one_tensor(batch_dim: int) -> None:
    shape = [-1, 4] if batch_dim == 0 else [4, -1]
    model = signature(inputs=[tensor("x", "FP32", shape, batch_dim=batch_dim)])
    pieces = tuple(np.arange(rows * 4, dtype=np.float32).reshape(rows, 4) for rows in (1, 3, 2))
    batch = batch_of(*[request({"x": piece}) for piece in pieces])
    apart = encode_batch(batch, {"x": pieces}, model, binary=True)
    together = encode_batch(batch, {"x": np.concatenate(pieces)}, model, binary=True)
    assert orjson.loads(apart[0]) == orjson.loads(together[0])
    assert b"".join(apart[1]) == b"".join(together[1])


def answer(*outputs: dict[str, Any], tail: bytes | None = None, **parameters: Any) -> BatchResult:
    header = orjson.dumps({"outputs": outputs, "parameters": parameters})
    length = None if tail is None else b"%d" % len(header)
    return decode_result(header + (tail or b""), length, MODEL)


def test_a_batch_is_json_and_raw_tensors() -> None:
    x = np.array([[1, 2, 3, 4]], np.float32)

    document, tail = sent({"x": x})

    assert document == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}],
        "parameters": {"binary_data_output": True},
    }
    assert tail == x.tobytes()


def test_the_batch_dimension_returns_to_its_place() -> None:
    model = signature([tensor("x", "INT8", [2, -1], batch_dim=1)], [tensor("y", "INT8", [-1])])

    document, tail = sent({"x": np.array([[1, 2], [3, 4], [5, 6]], np.int8)}, model)

    assert document["inputs"][0]["shape"] == [2, 3]
    assert tail == bytes([1, 3, 5, 2, 4, 6])


def test_what_clients_request_of_the_model_is_forwarded() -> None:
    document, _ = sent(
        {"x": np.zeros((1, 4), np.float32)},
        parameters=b'{"top_k":3}',
        tensors=b'{"inputs":{"x":{"resize":true}},"outputs":{"y":{"classification":2}}}',
    )

    assert document["parameters"] == {"top_k": 3, "binary_data_output": True}
    assert document["inputs"][0]["parameters"] == {"resize": True, "binary_data_size": 16}
    assert document["outputs"] == [
        {"name": "y", "parameters": {"classification": 2}}, {"name": "t"}, {"name": "b"},
    ]  # fmt: skip


def test_trace_headers_travel_by_row() -> None:
    first, second = request(2), request(1)
    second.trace = {"x-request-id": "é"}

    header, _ = encode_batch(batch_of(first, second), {"x": np.zeros((3, 4), np.float32)}, MODEL, binary=True)

    requests = orjson.loads(header)["parameters"]["requests"]
    assert orjson.loads(requests) == [{"rows": 2}, {"rows": 1, "x-request-id": "é"}]


@pytest.mark.parametrize(
    ("datatype", "array", "data"),
    [
        pytest.param("FP32", np.array([1.5], np.float32), [1.5], id="numbers"),
        pytest.param("BYTES", bytes_array(["é".encode()], (1,)), ["é"], id="texts"),
        pytest.param("BF16", np.array([0x3FC0], np.uint16), [1.5], id="bfloat16, by value"),
    ],
)
def test_a_runtime_without_the_binary_extension_gets_json(datatype: str, array: Array, data: list[Any]) -> None:
    document, tail = sent({"x": array}, signature([tensor("x", datatype, [-1])]), binary=False)

    assert document == {"inputs": [{"name": "x", "datatype": datatype, "shape": [1], "data": data}]}
    assert tail == b""


@pytest.mark.parametrize(
    ("datatype", "array", "what"),
    [
        pytest.param("BYTES", bytes_array([b"ok", b"\xff"], (2,)), "bytes that are not UTF-8", id="bytes"),
        pytest.param("FP32", np.array([1, np.nan], np.float32), "NaN or an infinity", id="NaN"),
        pytest.param("FP16", np.array([1, np.inf], np.float16), "NaN or an infinity", id="infinity"),
        pytest.param("BF16", np.array([0x3FC0, 0x7F80], np.uint16), "NaN or an infinity", id="bfloat16"),
    ],
)
def test_what_json_cannot_represent_is_rejected(datatype: str, array: Array, what: str) -> None:
    model = signature([tensor("x", datatype, [-1])])

    check_json({"x": array[:1]}, model)
    with pytest.raises(InvalidRequest, match=what):
        check_json({"x": array}, model)


def test_a_response_may_be_json_or_binary_or_both() -> None:
    text = {"name": "t", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}

    result = answer(Y, text, tail=b"\x02\x00\x00\x00hi")

    assert {name: array.tolist() for name, array in result.outputs.items()} == {"y": [[1, 2]], "t": [b"hi"]}


def test_json_responses_hold_nan_and_bfloat16() -> None:
    result = answer({**Y, "data": [None, 2]}, {"name": "b", "datatype": "BF16", "shape": [1], "data": [1.5]})

    assert np.isnan(result.outputs["y"][0, 0])
    assert result.outputs["b"].tolist() == [0x3FC0]


def test_nested_texts_are_accepted_as_what_they_are() -> None:
    result = answer({"name": "t", "datatype": "BYTES", "shape": [1, 1], "data": [["a"]]})

    assert result.outputs["t"].tolist() == [[b"a"]]


def test_a_batch_whose_rows_all_failed_has_no_outputs() -> None:
    errors = [{"row": 0, "status": 400, "message": "bad"}]

    result = answer(errors=orjson.dumps(errors).decode())
    assert (result.outputs, result.errors) == ({}, [RowError(0, 400, "bad")])


def test_an_output_of_no_rows_is_an_output() -> None:
    empty = {"name": "y", "datatype": "FP32", "shape": [0, 2], "parameters": {"binary_data_size": 0}}

    assert answer(empty, tail=b"").outputs["y"].shape == (0, 2)


def errors(**changes: Any) -> str:
    return orjson.dumps([{"row": 0, "status": 400, "message": "m", **changes}]).decode()


@pytest.mark.parametrize(
    ("outputs", "tail", "parameters"),
    [
        pytest.param([Y, Y], None, {}, id="an output twice"),
        pytest.param([{**Y, "shape": [-1, 2]}], None, {}, id="a negative size"),
        pytest.param([{**Y, "shape": [2**63, 0]}], None, {}, id="a size beyond 64 bits"),
        pytest.param([{**Y, "shape": [2, 2]}], None, {}, id="too few values"),
        pytest.param([{**Y, "datatype": "FP31"}], None, {}, id="an unknown datatype"),
        pytest.param([{**Y, "datatype": "UINT8", "data": [300, 1]}], None, {}, id="values out of range"),
        pytest.param([{**Y, "data": ["1", "2"]}], None, {}, id="texts for numbers"),
        pytest.param([{**Y, "name": ["y"]}], None, {}, id="a name that is a list"),
        pytest.param([{"name": "y"}], None, {}, id="a name alone"),
        pytest.param([3], None, {}, id="a number"),
        pytest.param([{**Y, "parameters": {"binary_data_size": 8}}], None, {}, id="binary without a header"),
        pytest.param([{**Y, "parameters": {"binary_data_size": 9}}], b"12345678", {}, id="more than came"),
        pytest.param([{**Y, "parameters": {"binary_data_size": -8}}], b"1234567812345678", {}, id="a negative length"),
        pytest.param([{**Y, "parameters": {"binary_data_size": 8}}], b"123456789", {}, id="bytes left over"),
        pytest.param([Y], None, {"errors": "["}, id="errors that are no JSON"),
        pytest.param([Y], None, {"errors": "5"}, id="errors that are no list"),
        pytest.param([Y], None, {"errors": errors(status=200)}, id="an error that succeeded"),
        pytest.param([Y], None, {"errors": errors(status=9999)}, id="an error of no HTTP status"),
        pytest.param([Y], None, {"errors": errors(row="0")}, id="a row that is a text"),
    ],
)
def test_a_response_that_breaks_the_protocol_is_the_models_failure(
    outputs: list[Any], tail: bytes | None, parameters: dict[str, Any]
) -> None:
    with pytest.raises(ModelFailed, match="violates the protocol"):
        answer(*outputs, tail=tail, **parameters)


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        pytest.param(400, b'{"error": "bad shape"}', InvalidRequest, "bad shape", id="400"),
        pytest.param(500, b'{"error": "boom", "code": "FORWARD_FAILED"}', ModelFailed, "boom", id="500"),
        pytest.param(500, b'{"error": "full", "code": "OUT_OF_MEMORY"}', BatchTooLarge, "full", id="out of memory"),
        pytest.param(503, b'{"error": "stopping"}', RuntimeBusy, "stopping", id="503"),
        pytest.param(429, b'{"error": "busy"}', RuntimeBusy, "busy", id="429"),
        pytest.param(422, b'{"error": "no"}', InvalidRequest, "no", id="422"),
        pytest.param(504, b'{"error": "late"}', DeadlineExceeded, "late", id="504"),
        pytest.param(302, b"", ModelFailed, "the runtime returned 302 without a reason", id="a redirect"),
        pytest.param(502, b"\xff<html>", ModelFailed, "\ufffd<html>", id="no JSON"),
        pytest.param(500, b'["error"]', ModelFailed, '["error"]', id="a list"),
        pytest.param(500, b'{"error": {"a": 1}}', ModelFailed, "{'a': 1}", id="an error that is an object"),
    ],
)
def test_a_failure_of_a_whole_batch(status: int, body: bytes, kind: type[ProxyError], message: str) -> None:
    error = decode_failure(status, body)

    assert type(error) is kind
    assert error.message == message
    assert error.may_have_run, "it does not say"
    assert not decode_failure(status, body, b"no").may_have_run


def test_a_503_that_states_it_ran_nothing_may_be_sent_again() -> None:
    assert type(decode_failure(503, b"", b"no")) is NotExecuted
    assert type(decode_failure(503, b"", b"maybe")) is RuntimeBusy


def test_a_lost_device_counts_as_a_lost_runtime_only_if_the_batch_may_have_run() -> None:
    body = b'{"error": "the device failed", "code": "DEVICE_LOST"}'

    assert type(decode_failure(503, body, b"maybe")) is RuntimeLost
    assert type(decode_failure(503, body, b"no")) is NotExecuted


def test_an_output_that_the_model_does_not_declare_is_accepted_as_it_comes() -> None:
    result = answer({"name": "new", "datatype": "INT64", "shape": [2, 1], "data": [7, 8]})

    assert result.outputs["new"].tolist() == [[7], [8]]


@pytest.mark.parametrize("datatype", ["FP32", "INT64"], ids=["as declared", "of another datatype"])
def test_an_output_whose_rows_stand_in_another_dimension_is_turned_whatever_its_datatype(datatype: str) -> None:
    model = signature(outputs=[tensor("y", "FP32", [2, -1], batch_dim=1)])
    header = orjson.dumps({"outputs": [{"name": "y", "datatype": datatype, "shape": [2, 3], "data": [*range(6)]}]})

    assert decode_result(header, None, model).outputs["y"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("status", [400, 413, 415, 422, 431])
def test_a_request_that_the_runtime_does_not_accept_is_rejected_with_its_own_status(status: int) -> None:
    error = decode_failure(status, b'{"error": "no"}')

    assert (type(error), error.status) == (InvalidRequest, status)


@pytest.mark.parametrize("status", [401, 404, 409, 414, 416, 423, 430, 432, 500, 501, 505])
def test_any_other_status_is_the_models_failure(status: int) -> None:
    assert type(decode_failure(status, b'{"error": "no"}')) is ModelFailed


def test_only_the_beginning_of_a_response_without_json_is_reported() -> None:
    assert decode_failure(502, b"x" * 10_000).message == "x" * 200
