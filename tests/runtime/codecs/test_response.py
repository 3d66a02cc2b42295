import numpy as np
import orjson
import pytest

from shoal_runtime import TensorSpec
from shoal_runtime.codecs.metadata import model_metadata
from shoal_runtime.codecs.request import InferRequest, RequestedOutput
from shoal_runtime.codecs.response import encode_error, encode_response
from shoal_runtime.errors import BadRequest
from shoal_runtime.signature.tensors import make_signature

NAMES = {"model_name": "m", "model_version": "1"}
Y = TensorSpec("y", "FP32", [-1, 2])
T = TensorSpec("t", "BYTES", [-1])


def request(*wanted: tuple[TensorSpec, bool], identifier: str | None = None) -> InferRequest:
    return InferRequest(identifier, {}, {}, 1, [RequestedOutput(s, b) for s, b in wanted])


def test_json_outputs_are_flat_lists() -> None:
    outputs = {"y": np.array([[1, 2]], dtype=np.float32)}

    length, body = encode_response(request((Y, False), identifier="7"), NAMES, outputs, {"k": 1})

    assert length is None
    assert orjson.loads(body) == {
        **NAMES,
        "id": "7",
        "parameters": {"k": 1},
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}],
    }


def test_binary_outputs_follow_the_json_in_order() -> None:
    outputs = {
        "y": np.array([[1, 2]], dtype=np.float32).T.copy().T,
        "t": np.array([b"ab"], dtype=object),
    }

    length, body = encode_response(request((T, True), (Y, True)), NAMES, outputs, {})

    assert length is not None
    sizes = [o["parameters"]["binary_data_size"] for o in orjson.loads(body[:length])["outputs"]]
    assert sizes == [6, 8]
    assert body[length:] == b"\2\0\0\0ab" + np.array([1, 2], dtype="<f4").tobytes()


def test_no_outputs_are_listed_when_every_row_failed() -> None:
    _, body = encode_response(request((Y, True)), NAMES, {}, {"errors": "[]"})

    assert orjson.loads(body)["outputs"] == []


def test_an_output_that_is_not_utf8_requires_binary_data() -> None:
    with pytest.raises(BadRequest, match=r"output t .*UTF-8"):
        encode_response(request((T, False)), NAMES, {"t": np.array([b"\xff"], dtype=object)}, {})


def test_errors_have_a_message_and_a_code() -> None:
    assert orjson.loads(encode_error("no", "BAD_REQUEST")) == {"error": "no", "code": "BAD_REQUEST"}


def test_metadata_parameters_hold_scalars_only() -> None:
    ids = TensorSpec("ids", "INT64", [-1, -1], pad_axis=1, pad_buckets=[8, 16], pad_mask="mask", pad_value=3)
    mask = TensorSpec("mask", "INT64", [-1, -1], optional=True)
    text = TensorSpec("text", "BYTES", [-1, -1], content_type="text/plain")
    out = TensorSpec("out", "FP32", [-1, -1], unpad_axis=1, unpad_input="ids")
    signature = make_signature([ids, mask, text], [out], max_batch_size=4, allowed_batch_sizes=(2, 4))

    document = model_metadata("m", "1", "p", signature)

    assert document["parameters"] == {"max_batch_size": 4, "allowed_batch_sizes": "2,4"}
    by_name = {t["name"]: t["parameters"] for t in (*document["inputs"], *document["outputs"])}
    assert by_name == {
        "ids": {
            "batch_dim": 0,
            "pad_axis": 1,
            "pad_value": 3,
            "pad_buckets": "8,16",
            "pad_mask": "mask",
        },
        "mask": {"batch_dim": 0, "optional": True},
        "text": {"batch_dim": 0, "content_type": "text/plain"},
        "out": {"batch_dim": 0, "unpad_axis": 1, "unpad_input": "ids"},
    }
