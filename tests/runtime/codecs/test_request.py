import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime import TensorSpec
from shoal_runtime.codecs.request import InferRequest, decode_request
from shoal_runtime.errors import BadRequest, TooManyRows
from shoal_runtime.signature.tensors import Signature, make_signature
from shoal_schema.wire.datatypes import DTYPES

SIGNATURE = make_signature(
    [TensorSpec("x", "FP32", [-1, 2]), TensorSpec("mask", "BOOL", [-1, 3], optional=True)],
    [TensorSpec("y", "FP32", [-1, 2]), TensorSpec("z", "BF16", [-1])],
    max_batch_size=4,
    allowed_batch_sizes=(),
)
Y = {"name": "y"}


def decode(document: Any, raw: bytes = b"", signature: Signature = SIGNATURE) -> InferRequest:
    header = document if isinstance(document, bytes) else orjson.dumps(document)
    return decode_request(memoryview(bytearray(header + raw)), len(header), signature)


def entry(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2], **changes}


def binary(size: Any, **changes: Any) -> dict[str, Any]:
    made = entry(parameters={"binary_data_size": size})
    del made["data"]
    return {**made, **changes}


def test_a_json_batch_is_decoded() -> None:
    request = decode({"id": "7", "inputs": [entry()], "outputs": [Y], "parameters": {"k": 1}})

    assert request.id == "7"
    assert request.rows == 1
    assert request.parameters == {"k": 1}
    assert request.inputs["x"].tolist() == [[1, 2]]
    assert [(wanted.spec.name, wanted.binary) for wanted in request.outputs] == [("y", False)]


def test_raw_tensors_are_not_copied() -> None:
    header = orjson.dumps({"inputs": [binary(8)], "outputs": [Y]})
    body = bytearray(header.ljust(256) + struct.pack("<2f", 1, 2))

    request = decode_request(memoryview(body), 256, SIGNATURE)

    struct.pack_into("<f", body, 256, 5.0)
    assert request.inputs["x"].tolist() == [[5, 2]]


def test_an_unaligned_tensor_is_copied() -> None:
    mask = {"name": "mask", "datatype": "BOOL", "shape": [1, 3]}
    first = {**mask, "parameters": {"binary_data_size": 3}}

    request = decode({"inputs": [first, binary(8)], "outputs": [Y]}, b"\1\0\1" + struct.pack("<2f", 1, 2))

    assert request.inputs["x"].flags.aligned
    assert request.inputs["x"].tolist() == [[1, 2]]
    assert request.inputs["mask"].tolist() == [[True, False, True]]


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BYTES"])
def test_every_datatype_travels_as_raw_bytes(datatype: str) -> None:
    signature = make_signature(
        [TensorSpec("x", datatype, [-1])],
        [TensorSpec("y", "FP32", [-1])],
        max_batch_size=4,
        allowed_batch_sizes=(),
    )
    array = np.array([0, 1, 1], dtype=DTYPES[datatype])
    made = binary(array.nbytes, datatype=datatype, shape=[3])

    request = decode({"inputs": [made]}, array.tobytes(), signature)

    assert request.inputs["x"].dtype == array.dtype
    assert np.array_equal(request.inputs["x"], array)


def test_narrow_numbers_are_widened() -> None:
    wide = make_signature(
        [TensorSpec("x", "FP64", [-1, 2])], [TensorSpec("y", "FP64", [-1])], max_batch_size=4, allowed_batch_sizes=()
    )

    for sent, raw in ((binary(8), struct.pack("<2f", 0.5, 2)), (entry(data=[0.5, 2]), b"")):
        x = decode({"inputs": [sent]}, raw, wide).inputs["x"]
        assert x.dtype == np.float64
        assert x.tolist() == [[0.5, 2]]
    with pytest.raises(BadRequest, match="x is FP64, not FP16"):
        decode({"inputs": [entry(datatype="FP16")]}, b"", wide)


def test_bytes_elements_are_split() -> None:
    signature = make_signature(
        [TensorSpec("t", "BYTES", [-1, 2])],
        [TensorSpec("y", "FP32", [-1])],
        max_batch_size=4,
        allowed_batch_sizes=(),
    )
    raw = struct.pack("<I", 2) + b"ab" + struct.pack("<I", 0)
    made = binary(len(raw), name="t", datatype="BYTES", shape=[1, 2])

    assert decode({"inputs": [made]}, raw, signature).inputs["t"].tolist() == [[b"ab", b""]]


@pytest.mark.parametrize(
    ("document", "raw", "message"),
    [
        pytest.param(b"{", b"", "not JSON", id="broken json"),
        pytest.param(b"\xff\xfe", b"", "not JSON", id="no utf-8"),
        pytest.param([], b"", "must be a JSON object", id="list"),
        pytest.param({}, b"", "`inputs` must be a list", id="no inputs"),
        pytest.param({"inputs": []}, b"", "`inputs` must be a list", id="empty inputs"),
        pytest.param({"inputs": [1]}, b"", "an object with a `name`", id="input is no object"),
        pytest.param({"inputs": [entry(name="q")]}, b"", "no input q", id="name"),
        pytest.param({"inputs": [entry(datatype="FP64")]}, b"", "is FP32, not FP64", id="datatype"),
        pytest.param({"inputs": [entry(shape=[2])]}, b"", r"\[-1, 2\]", id="rank"),
        pytest.param({"inputs": [entry(shape=[1, 3])]}, b"", "has shape", id="dimension"),
        pytest.param({"inputs": [entry(shape=[-1, 2])]}, b"", "whole numbers", id="negative"),
        pytest.param({"inputs": [entry(shape=[True, 2])]}, b"", "whole numbers", id="boolean"),
        pytest.param({"inputs": [entry(shape=[0, 2], data=[])]}, b"", "no rows", id="no rows"),
        pytest.param({"inputs": [entry(), entry()]}, b"", "given twice", id="twice"),
        pytest.param({"inputs": [entry(data=None)]}, b"", "needs a list", id="no data"),
        pytest.param({"inputs": [binary(8)]}, b"1234", "binary_data_size 8", id="lying size"),
        pytest.param({"inputs": [binary(4)]}, b"1234", "needs 8", id="size against shape"),
        pytest.param({"inputs": [binary(-1)]}, b"", "whole number of bytes", id="negative size"),
        pytest.param({"inputs": [binary("8")]}, b"", "whole number of bytes", id="text size"),
        pytest.param({"inputs": [binary(True)]}, b"1", "whole number", id="boolean size"),
        pytest.param({"inputs": [entry()]}, b"12", "2 bytes follow", id="bytes left"),
        pytest.param({"inputs": [entry()], "outputs": [Y], "id": 5}, b"", "`id` must", id="id"),
        pytest.param({"inputs": [entry()], "parameters": 5}, b"", "`parameters`", id="parameters"),
        pytest.param({"inputs": [entry()], "outputs": "y"}, b"", "must be a list", id="outputs"),
        pytest.param({"inputs": [entry()], "outputs": [{"name": "q"}]}, b"", "no output q", id="q"),
        pytest.param({"inputs": [entry()]}, b"", "BF16, which JSON cannot hold", id="bfloat16"),
        pytest.param({"inputs": [binary(8, data=[1, 2])]}, b"12345678", "both", id="both"),
        pytest.param(
            {"inputs": [{"name": "mask", "datatype": "BOOL", "shape": [1, 3], "data": [True] * 3}]},
            b"",
            "input x is missing",
            id="missing",
        ),
    ],
)
def test_malformed_requests_are_rejected(document: Any, raw: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        decode(document, raw)


def test_a_huge_shape_is_rejected_without_allocation() -> None:
    with pytest.raises(BadRequest, match="needs"):
        decode({"inputs": [binary(8, shape=[2**62, 2])], "outputs": [Y]}, b"12345678")


def test_booleans_must_be_zero_or_one() -> None:
    mask = {"name": "mask", "datatype": "BOOL", "shape": [1, 3]}
    with pytest.raises(BadRequest, match="other than 0 and 1"):
        decode({"inputs": [{**mask, "parameters": {"binary_data_size": 3}}]}, b"\1\0\2")


def test_inputs_must_agree_on_rows() -> None:
    mask = {"name": "mask", "datatype": "BOOL", "shape": [2, 3], "data": [True] * 6}
    with pytest.raises(BadRequest, match="different numbers of rows"):
        decode({"inputs": [entry(), mask], "outputs": [Y]})


def test_more_rows_than_max_batch_size_are_rejected() -> None:
    with pytest.raises(TooManyRows, match="5 rows"):
        decode({"inputs": [entry(shape=[5, 2], data=[0] * 10)], "outputs": [Y]})


@pytest.mark.parametrize("json_bytes", [-1, 999])
def test_a_wrong_header_length_is_rejected(json_bytes: int) -> None:
    with pytest.raises(BadRequest, match="Inference-Header-Content-Length"):
        decode_request(memoryview(bytearray(b"{}")), json_bytes, SIGNATURE)


def test_outputs_may_differ_in_encoding() -> None:
    outputs = [{"name": "z", "parameters": {"binary_data": True}}, Y]

    request = decode({"inputs": [entry()], "outputs": outputs})

    assert [(w.spec.name, w.binary) for w in request.outputs] == [("z", True), ("y", False)]


@given(st.binary(max_size=200), st.integers(0, 250))
def test_any_bytes_are_a_request_or_a_bad_request(body: bytes, json_bytes: int) -> None:
    with pytest.raises(BadRequest):
        decode_request(memoryview(bytearray(body)), json_bytes, SIGNATURE)
