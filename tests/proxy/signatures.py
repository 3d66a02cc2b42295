"""Signatures, calls and requests for the tests of the proxy's core, as short as they can be written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from shoal_proxy.batching.batch import shape_key
from shoal_proxy.batching.batcher import Batcher, RunningBatch
from shoal_proxy.batching.pending import PLAIN_KEY, PLAIN_LANE, BatchKey, Delivery, LaneKey, Outcome, PendingRequest
from shoal_proxy.codecs.base import HttpResponse, InferCall
from shoal_proxy.model.signature import ModelSignature, parse_metadata
from shoal_proxy.model.sizes import byte_size_of
from shoal_schema.wire.datatypes import Array
from tests.fakes import tensor

FLOATS = tensor("x", "FP32", [-1, 4])
DOUBLED = tensor("y", "FP32", [-1, 4])


def signature(
    inputs: Sequence[Mapping[str, Any]] = (FLOATS,),
    outputs: Sequence[Mapping[str, Any]] = (DOUBLED,),
    **parameters: Any,
) -> ModelSignature:
    """Return the signature that such V2 metadata gives."""
    return parse_metadata(
        {"name": "m", "versions": ["1"], "inputs": list(inputs), "outputs": list(outputs), "parameters": parameters}
    )


def call(body: Any, **headers: str) -> InferCall:
    """Return a call whose body is ``body``: bytes as they are, anything else as JSON."""
    named = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in headers.items()}
    return InferCall(named, body if isinstance(body, bytes) else orjson.dumps(body))


def document(reply: HttpResponse) -> Any:
    """Return the JSON part of a reply."""
    body = b"".join(reply.body)
    return orjson.loads(body[: header_length(reply)])


def header_length(reply: HttpResponse) -> int:
    """Return how long the JSON part of a reply is."""
    _, named, rest = reply.lines.partition(b"inference-header-content-length: ")
    return int(rest.partition(b"\r\n")[0]) if named else sum(map(len, reply.body))


def ignore(_: Outcome) -> None:
    """Take an outcome that the test does not look at."""


def deliver_outcome(deliveries: Iterable[Delivery]) -> None:
    """Do what the dispatcher does with outcomes."""
    for pending, outcome in deliveries:
        pending.deliver_outcome(outcome)


def come_back(batcher: Batcher, running: RunningBatch, forward_s: float | None, now_s: float) -> None:
    """Report to ``batcher`` that a batch is back, and its answers have left."""
    batcher.record_finished(running, now_s)
    running.completed_s, running.forward_s = now_s, forward_s
    batcher.record_delivered(running, now_s)


def request(
    inputs: Mapping[str, Array] | int = 1,
    *,
    deliver: Callable[[Outcome], None] = ignore,
    key: BatchKey = PLAIN_KEY,
    lane: LaneKey = PLAIN_LANE,
    arrived_s: float = 0.0,
    deadline_s: float = 60.0,
) -> PendingRequest:
    """Return a request of these arrays, or of so many rows of four zeros."""
    arrays = {"x": np.zeros((inputs, 4), np.float32)} if isinstance(inputs, int) else inputs
    return PendingRequest(
        inputs=arrays,
        rows=len(next(iter(arrays.values()))),
        size_bytes=byte_size_of(arrays),
        arrived_s=arrived_s,
        deadline_s=deadline_s,
        deliver=deliver,
        key=key,
        lane=lane,
    )


def padded_request(inputs: Mapping[str, Array], model: ModelSignature, **lengths: list[int]) -> PendingRequest:
    """Return a request to a model that pads, with the key that the proxy gives it."""
    pending = request(inputs, key=BatchKey(shape_key(inputs, model)))
    pending.lengths = {
        name: lengths.get(name, [array.shape[axis]] * pending.rows)
        for name, array in inputs.items()
        if (axis := model.inputs[name].pad_axis) is not None
    }
    return pending
