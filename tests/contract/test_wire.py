"""The wire, from both sides: what the proxy writes the runtime reads, and the other way round."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shoal.wire.messages import Response
from shoal.wire.responses import error_from
from shoal_proxy.batching.batch import make_batch, merge, split
from shoal_proxy.batching.pending import Outcome, PendingRequest, RequestResult, RequestSlice
from shoal_proxy.codecs.upstream import decode_failure, decode_result, encode_batch
from shoal_proxy.codecs.v1 import V1
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    NotExecuted,
    ProxyError,
    RowsFailed,
    RuntimeLost,
)
from shoal_proxy.model.signature import ModelSignature, parse_metadata
from shoal_runtime import TensorSpec
from shoal_runtime.codecs.metadata import model_metadata
from shoal_runtime.codecs.request import decode_request
from shoal_runtime.codecs.response import encode_error, encode_response
from shoal_runtime.errors import FailedRow
from shoal_runtime.signature.tensors import Signature, make_signature
from shoal_schema.wire.datatypes import DTYPES
from shoal_schema.wire.row_errors import RowError, encode_row_errors
from tests.proxy.signatures import deliver_outcome

Array = np.ndarray[Any, Any]
NUMERIC = [name for name in DTYPES if name != "BYTES"]


def runtime_signature(datatype: str, batch_dim: int) -> Signature:
    shape = [3, 3]
    shape[batch_dim] = -1
    return make_signature(
        [TensorSpec("x", datatype, shape, batch_dim=batch_dim)],
        [TensorSpec("y", datatype, shape, batch_dim=batch_dim)],
        max_batch_size=64,
        allowed_batch_sizes=(),
    )


def proxy_signature(signature: Signature) -> ModelSignature:
    return parse_metadata(orjson.loads(orjson.dumps(model_metadata("m", "1", "test", signature))))


def pending(x: Array, outcomes: list[Outcome], **more: Any) -> PendingRequest:
    return PendingRequest(
        inputs={"x": x},
        rows=len(x),
        size_bytes=x.nbytes,
        arrived_s=0.0,
        deadline_s=1.0,
        deliver=outcomes.append,
        **more,
    )


def whole(one: PendingRequest) -> RequestSlice:
    return RequestSlice(one, 0, one.rows, one.inputs)


@st.composite
def clients(draw: st.DrawFn, datatype: str) -> list[Array]:
    def one(rows: int) -> Array:
        if datatype == "BYTES":
            flat = np.empty(rows * 3, dtype=object)
            flat[:] = draw(st.lists(st.binary(max_size=9), min_size=rows * 3, max_size=rows * 3))
            return flat.reshape(rows, 3)
        return draw(arrays.arrays(DTYPES[datatype], (rows, 3)))

    return [one(rows) for rows in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))]


@pytest.mark.parametrize("batch_dim", [0, 1])
@pytest.mark.parametrize("datatype", [*NUMERIC, "BYTES"])
def test_rows_go_there_and_back_bit_by_bit(datatype: str, batch_dim: int) -> None:
    theirs = runtime_signature(datatype, batch_dim)
    ours = proxy_signature(theirs)

    @given(xs=clients(datatype))
    def check(xs: list[Array]) -> None:
        outcomes: list[list[Outcome]] = [[] for _ in xs]
        slices = [whole(pending(x, outcome)) for x, outcome in zip(xs, outcomes, strict=True)]
        batch = make_batch(slices)
        header, tail = encode_batch(batch, merge(batch, ours).inputs, ours, binary=True)
        request = decode_request(memoryview(header + b"".join(map(bytes, tail))), len(header), theirs)
        assert request.rows == sum(map(len, xs))
        length, body = encode_response(request, {"model_name": "m"}, {"y": request.inputs["x"]}, {"forward_us": 1})
        assert length is not None
        deliver_outcome(split(batch, decode_result(body, b"%d" % length, ours), ours))
        for x, outcome in zip(xs, outcomes, strict=True):
            assert isinstance(outcome[0], RequestResult)
            assert same(outcome[0].outputs["y"], x)

    check()


def same(one: Array, other: Array) -> bool:
    """Return whether two arrays are equal bit by bit, NaN included."""
    if one.shape != other.shape:
        return False
    if other.dtype.hasobject:
        return bool(one.tolist() == other.tolist())
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


@pytest.mark.parametrize("failed", [[], [0], [1, 3], [0, 1, 2, 3]])
def test_failed_rows_are_absent_from_the_outputs_and_named_beside(failed: Sequence[int]) -> None:
    theirs = runtime_signature("FP32", 0)
    ours = proxy_signature(theirs)
    x = np.arange(12, dtype="<f4").reshape(4, 3)
    outcomes: list[list[Outcome]] = [[], []]
    batch = make_batch([whole(pending(x[:2], outcomes[0])), whole(pending(x[2:], outcomes[1]))])
    header, tail = encode_batch(batch, {"x": x}, ours, binary=True)
    request = decode_request(memoryview(header + b"".join(map(bytes, tail))), len(header), theirs)
    good = [row for row in range(4) if row not in failed]
    errors = encode_row_errors([FailedRow(row, 422, "no").row_error for row in failed])
    parameters = {"errors": orjson.dumps(errors).decode()} if errors else {}
    length, body = encode_response(request, {}, {"y": x[good]} if good else {}, parameters)

    deliver_outcome(split(batch, decode_result(body, None if length is None else b"%d" % length, ours), ours))

    for number, own in enumerate(([0, 1], [2, 3])):
        outcome = outcomes[number][0]
        if set(own) & set(failed):
            assert isinstance(outcome, RowsFailed)
            assert [error.row for error in outcome.errors] == [row - own[0] for row in own if row in failed]
            assert outcome.status == 422
        else:
            assert isinstance(outcome, RequestResult)
            assert same(outcome.outputs["y"], x[own])


@pytest.mark.parametrize("codec", [V2(), V1()])
def test_the_client_reports_the_failed_rows_of_the_proxy(codec: V1 | V2) -> None:
    rows = (RowError(0, 422, "too dark"), RowError(3, 500, "boom"))
    reply = codec.error(RowsFailed(rows))

    error = error_from(Response(reply.status, {}, b"".join(map(bytes, reply.body))))

    assert error is not None
    assert error.errors == rows


@pytest.mark.parametrize(
    ("status", "code", "executed", "kind"),
    [
        (400, "BAD_REQUEST", b"no", InvalidRequest),
        (500, "FORWARD_FAILED", b"maybe", ModelFailed),
        (500, "WRONG_ROWS", b"maybe", ModelFailed),
        (500, "OUT_OF_MEMORY", b"maybe", ModelFailed),
        (503, "NOT_READY", b"no", NotExecuted),
        (503, "DEVICE_LOST", b"maybe", RuntimeLost),
        (504, "TIMEOUT", b"no", DeadlineExceeded),
    ],
)
def test_a_failed_batch_means_the_same_on_both_sides(
    status: int, code: str, executed: bytes, kind: type[ProxyError]
) -> None:
    error = decode_failure(status, encode_error("because", code), executed)
    assert isinstance(error, kind)
    assert error.may_have_run == (executed == b"maybe")
    assert error.message == "because"


def test_the_clients_requests_reach_the_runtime_in_row_order() -> None:
    theirs = runtime_signature("FP32", 0)
    ours = proxy_signature(theirs)
    x = np.zeros((3, 3), "<f4")
    batch = make_batch(
        [
            whole(pending(x[:2], [], trace={"x-request-id": "a"})),
            whole(pending(x[2:], [])),
        ]
    )
    header, tail = encode_batch(batch, {"x": x}, ours, binary=True)
    request = decode_request(memoryview(header + b"".join(map(bytes, tail))), len(header), theirs)
    assert orjson.loads(request.parameters["requests"]) == [{"rows": 2, "x-request-id": "a"}, {"rows": 1}]


def test_padding_rules_survive_the_metadata() -> None:
    signature = make_signature(
        [
            TensorSpec(
                "ids", "INT64", [-1, -1], pad_axis=1, pad_value=7, pad_buckets=(16, 32), pad_mask="mask", optional=False
            ),
            TensorSpec("mask", "INT64", [-1, -1], optional=True),
        ],
        [TensorSpec("scores", "FP32", [-1, -1, 5], unpad_axis=1, unpad_input="ids")],
        max_batch_size=32,
        allowed_batch_sizes=(8, 32),
    )
    ours = proxy_signature(signature)
    ids, mask, scores = ours.inputs["ids"], ours.inputs["mask"], ours.outputs["scores"]
    assert (ids.pad_axis, ids.pad_value, ids.pad_buckets, ids.pad_mask) == (1, 7, (16, 32), "mask")
    assert (mask.optional, mask.pad_axis) == (True, 1)
    assert (scores.unpad_axis, scores.unpad_input) == (1, "ids")
    assert (ours.max_batch_size, ours.allowed_batch_sizes, ours.pads) == (32, (8, 32), True)


@pytest.mark.parametrize("precision", ["", "BFloat16"])
def test_a_precision_chosen_by_measurement_reaches_the_proxy(precision: str) -> None:
    metadata = model_metadata("m", "1", "test", runtime_signature("FP32", 0), precision=precision)

    assert parse_metadata(orjson.loads(orjson.dumps(metadata))).precision == precision


def test_what_warm_up_measured_is_where_the_latency_table_starts() -> None:
    metadata = model_metadata("m", "1", "test", runtime_signature("FP32", 0), [(1, 0.0042), (64, 0.0104)])

    assert parse_metadata(orjson.loads(orjson.dumps(metadata))).measured == ((1, 0.0042), (64, 0.0104))


def test_what_carries_heads_of_http_is_known_on_both_sides() -> None:
    from shoal_runtime.formats.torchserve_service import INPUTS, OUTPUTS

    runtime = make_signature(INPUTS, OUTPUTS, max_batch_size=8, allowed_batch_sizes=())
    proxy = proxy_signature(runtime)

    assert (proxy.request_headers, proxy.response_head) == ("headers", "head")
    assert proxy.inputs["headers"].optional
    plain = proxy_signature(runtime_signature("FP32", 0))
    assert (plain.request_headers, plain.response_head) == ("", "")
