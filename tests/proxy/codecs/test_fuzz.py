"""Whatever comes in, a codec decodes it or says what is wrong: no other exception ever escapes."""

import contextlib
from typing import Any

import hypothesis.strategies as st
import numpy as np
import orjson
import pytest
from hypothesis import given, settings

from shoal_proxy.batching.batch import check_lengths, shape_key
from shoal_proxy.codecs.base import Codec, InferCall
from shoal_proxy.codecs.invocations import Invocations
from shoal_proxy.codecs.texts import Embeddings, Rerank
from shoal_proxy.codecs.torchserve import TorchServe
from shoal_proxy.codecs.upstream import decode_failure, decode_result
from shoal_proxy.codecs.v1 import V1
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.errors import ModelFailed, ProxyError
from shoal_proxy.model.signature import ModelSignature, SignatureError, parse_metadata
from shoal_proxy.rpc.inference_pb2 import ModelInferRequest
from shoal_proxy.rpc.messages import GrpcV2
from tests.fakes import tensor
from tests.proxy.signatures import padded_request, signature

MODELS = {
    "floats": signature(),
    "two": signature([tensor("x", "INT8", [-1, 2]), tensor("b", "BYTES", [-1])]),
    "tokens": signature([tensor("x", "INT64", [-1, -1], pad_axis=1, pad_mask="m"), tensor("m", "BOOL", [-1, -1])]),
    "texts": signature([tensor("x", "BYTES", [-1, -1])]),
    "values": signature([tensor("x", "BYTES", [-1], content_type="application/json")]),
    "alone": signature([tensor("x", "FP32", [4])], [tensor("y", "FP32", [4])]),
    "sideways": signature([tensor("x", "UINT64", [4, -1], batch_dim=1)]),
    "optional": signature([tensor("x", "FP32", [-1, 4], optional=True)]),
    "words": signature([tensor("x", "BYTES", [])], [tensor("y", "FP32", [4])]),
    "pairs": signature(
        [tensor("query", "BYTES", [-1]), tensor("document", "BYTES", [-1])], [tensor("score", "FP32", [-1])]
    ),
}
CODECS: list[Codec] = [V1(), V2(), TorchServe(), Embeddings("m"), Rerank("m", 1 << 20), Invocations(1 << 20)]
WORDS = [
    "instances", "inputs", "outputs", "name", "datatype", "shape", "data", "parameters", "binary_data_size", "id", "x",
    "y", "b", "m", "b64", "timeout", "binary_data_output", "binary_data", "FP32", "BYTES", "errors", "error", "code",
    "pad_axis", "pad_buckets", "pad_mask", "pad_value", "batch_dim", "unpad_axis", "unpad_input", "max_batch_size",
    "content_type", "optional", "2", "1,2", "columns", "input", "query", "documents", "text", "top_n", "params",
]  # fmt: skip
MEDIA_TYPES = [
    b"",
    b"application/json",
    b"image/png",
    b"text/plain",
    b"text/csv",
    b"multipart/form-data; boundary=B",
    b"\xff;;=",
]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 2, 4, -1, 8, 16, 2**31, 2**40, 2**63, 2**64 - 1, -(2**63), 0.5, 1e300]),
    st.sampled_from(WORDS),
    st.text(max_size=3),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=14,
)

VALID = [
    b'{"instances":[[1,2,3,4],[5,6,7,8]]}',
    b'{"inputs":{"x":[[1,2,3,4]]}}',
    b'{"id":"a","inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}],"outputs":[{"name":"y"}],'
    b'"parameters":{"timeout":5}}',
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]}0123456789abcdef',
    b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1,1],"parameters":{"binary_data_size":6}}]}\2\0\0\0hi',
    b'{"dataframe_split":{"columns":["x"],"data":[[1],[null]]}}',
    b'x,b\n1,"two"\n,\n',
    b'--B\r\nContent-Disposition: form-data; name="d"\r\nContent-Type: image/png\r\n\r\nPNG\r\n--B--\r\n',
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a valid body with some bytes replaced, dropped or doubled."""
    body = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(body)))
        stop = min(len(body), start + draw(st.integers(0, 3)))
        body[start:stop] = draw(st.one_of(st.binary(max_size=3), st.sampled_from([b"[", b"}", b'"', b"-", b"null"])))
    return bytes(body)


def ask(codec: Codec, call: InferCall, model: ModelSignature) -> None:
    """Take a call as far as the queue."""
    try:
        admit(codec, call, model)
    except ProxyError as error:
        refusal = error
    else:
        return
    assert 400 <= refusal.status < 500
    assert len(codec.error(refusal).body[0]) < 5000


def admit(codec: Codec, call: InferCall, model: ModelSignature) -> None:
    decoded = codec.decode(call, model)
    assert decoded.rows >= 1
    assert decoded.inputs
    for name, array in decoded.inputs.items():
        assert isinstance(array, np.ndarray)
        assert array.ndim == len(model.inputs[name].shape)
        assert not model.batches or array.shape[0] == decoded.rows
        assert array.size, "rows without elements cost nothing to send"
    if model.pads:
        padded = padded_request(decoded.inputs, model, **{k: list(v) for k, v in decoded.lengths.items()})
        check_lengths(padded.lengths, model)
    shape_key(decoded.inputs, model)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@given(value=values, codec=st.sampled_from(CODECS))
@settings(max_examples=60, deadline=None)
def test_any_json_is_decoded_or_rejected(model: ModelSignature, value: Any, codec: Codec) -> None:
    ask(codec, InferCall({}, orjson.dumps(value)), model)
    ask(codec, InferCall({}, orjson.dumps({"instances": value})), model)
    ask(codec, InferCall({}, orjson.dumps({"inputs": value})), model)
    for form in ("dataframe_split", "dataframe_records", "input"):
        ask(codec, InferCall({}, orjson.dumps({form: value})), model)
    ask(codec, InferCall({}, orjson.dumps({"query": "q", "documents": value, "top_n": value})), model)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@given(value=values, key=st.sampled_from(["shape", "data", "parameters", "name", "datatype"]), datatype=st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_tensor_is_decoded_or_rejected(model: ModelSignature, value: Any, key: str, *, datatype: bool) -> None:
    spec = next(iter(model.inputs.values()))
    shape = [4 if size == -1 else size for size in spec.shape]
    good = {"name": "x", "datatype": spec.datatype if datatype else "FP32", "shape": shape, "data": value}
    tensor_ = {**good, key: value}

    ask(V2(), InferCall({}, orjson.dumps({"inputs": [tensor_]})), model)
    ask(V2(), InferCall({}, orjson.dumps({"inputs": [good], key: value, "outputs": value})), model)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@given(
    body=mutated() | st.binary(max_size=30),
    codec=st.sampled_from(CODECS),
    media_type=st.sampled_from(MEDIA_TYPES),
    length=st.none() | st.integers(-1, 120).map(lambda n: b"%d" % n) | st.binary(max_size=3),
)
@settings(max_examples=80, deadline=None)
def test_any_bytes_are_decoded_or_rejected(
    model: ModelSignature, body: bytes, codec: Codec, media_type: bytes, length: bytes | None
) -> None:
    headers = {b"content-type": media_type} if media_type else {}
    if length is not None:
        headers[b"inference-header-content-length"] = length

    ask(codec, InferCall(headers, body), model)


def message(datatype: str, shape: list[int], raw: bytes, *, typed: bool) -> bytes:
    """Return a request of gRPC with one input, whose data may not fit it."""
    made = ModelInferRequest(model_name="m")
    tensor_ = made.inputs.add(name="x", datatype=datatype, shape=shape)
    if typed:
        tensor_.contents.fp32_contents.extend(raw)
        tensor_.contents.int_contents.extend(raw)
        tensor_.contents.bytes_contents.append(raw)
    else:
        made.raw_input_contents.append(raw)
    written: bytes = made.SerializeToString()
    return written


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@given(
    datatype=st.sampled_from(["FP32", "INT8", "INT64", "UINT64", "BYTES", "FP16", "BOOL", "", "X"]),
    shape=st.lists(st.integers(-1, 4), max_size=3) | st.just([2**62, 4]),
    raw=st.binary(max_size=20),
    typed=st.booleans(),
    cut=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_any_message_of_grpc_is_decoded_or_rejected(
    model: ModelSignature, datatype: str, shape: list[int], raw: bytes, *, typed: bool, cut: int
) -> None:
    body = message(datatype, shape, raw, typed=typed)
    ask(GrpcV2("m", "1"), InferCall({}, body[: len(body) - cut]), model)
    ask(GrpcV2("m", "1"), InferCall({}, raw), model)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@given(value=values, body=mutated(), length=st.none() | st.integers(0, 120).map(lambda n: b"%d" % n))
@settings(max_examples=80, deadline=None)
def test_any_response_of_the_runtime_is_decoded_or_its_failure(
    model: ModelSignature, value: Any, body: bytes, length: bytes | None
) -> None:
    bodies = [
        body,
        orjson.dumps(value),
        orjson.dumps({"outputs": value}),
        orjson.dumps({"outputs": [], "parameters": value}),
    ]
    if isinstance(value, dict):
        good = {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        bodies.append(orjson.dumps({"outputs": [{**good, **value}]}))
    bodies.append(orjson.dumps({"outputs": [], "parameters": {"errors": orjson.dumps(value).decode()}}))
    for one in bodies:
        with contextlib.suppress(ModelFailed):
            decode_result(one, length, model)
        assert isinstance(decode_failure(500, one), ProxyError)


@given(
    value=values,
    key=st.sampled_from(["inputs", "outputs", "parameters", "name", "versions", "shape", "datatype", "tensor"]),
    rule=st.dictionaries(st.sampled_from(WORDS), scalars, max_size=4),
)
@settings(max_examples=400, deadline=None)
def test_any_metadata_is_a_signature_or_rejected(value: Any, key: str, rule: dict[str, Any]) -> None:
    x: Any = {**tensor("x", "FP32", [-1, -1]), "parameters": rule}
    y: Any = {**tensor("y", "FP32", [-1, -1]), "parameters": rule}
    if key in ("shape", "datatype", "tensor"):
        x = value if key == "tensor" else {**x, key: value}
    metadata: Any = {"name": "m", "inputs": [x], "outputs": [y]}
    if key in metadata or key in ("versions", "parameters"):
        metadata[key] = value

    with contextlib.suppress(SignatureError):
        model = parse_metadata(metadata)
        assert model.max_batch_size is None or model.max_batch_size >= 1
        for spec in model.inputs.values():
            assert spec.pad_axis is None or 0 < spec.pad_axis < len(spec.shape)
    with contextlib.suppress(SignatureError):
        parse_metadata(value)
