"""The wire to the runtime: batches out, answers in. See docs/contracts.md, section 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from shoal_proxy.batching.batch import Batch, Result
from shoal_proxy.codecs.tensors import from_binary, to_binary, to_canonical, to_wire
from shoal_proxy.codecs.v2 import split_body
from shoal_proxy.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    ProxyError,
    RowError,
    RuntimeAway,
)
from shoal_proxy.model.datatypes import DTYPES, Array, bytes_array
from shoal_proxy.model.signature import InputSpec, ModelSignature, OutputSpec


class BatchTooLarge(ModelFailed):
    """The runtime's memory is too small for this batch; a smaller one may pass."""


def encode_batch(
    batch: Batch, inputs: Mapping[str, Array], signature: ModelSignature, *, binary: bool
) -> tuple[bytes, list[bytes | memoryview]]:
    """Return the JSON part and the binary tensors that follow it; without ``binary`` everything is in the JSON."""
    tensors: list[dict[str, Any]] = []
    tail: list[bytes | memoryview] = []
    asked = orjson.loads(batch.key.tensors) if batch.key.tensors else {}
    for name, array in inputs.items():
        tensor = _input(signature.inputs[name], array, tail, binary=binary)
        if extra := asked.get("inputs", {}).get(name):
            tensor["parameters"] = {**extra, **tensor.get("parameters", {})}
        tensors.append(tensor)
    document: dict[str, Any] = {"inputs": tensors}
    if outputs := asked.get("outputs"):
        document["outputs"] = [
            {"name": name, "parameters": outputs[name]} if name in outputs else {"name": name}
            for name in signature.outputs
        ]
    if parameters := _parameters(batch, binary=binary):
        document["parameters"] = parameters
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY), tail


def _input(spec: InputSpec, array: Array, tail: list[bytes | memoryview], *, binary: bool) -> dict[str, Any]:
    wire = to_wire(spec, array)
    tensor: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": wire.shape}
    if binary:
        data = to_binary(wire)
        tail.append(data)
        tensor["parameters"] = {"binary_data_size": len(data)}
    elif spec.datatype == "BYTES":
        tensor["data"] = [element.decode() for element in wire.ravel().tolist()]
    else:
        tensor["data"] = wire.reshape(-1)
    return tensor


def _parameters(batch: Batch, *, binary: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = orjson.loads(batch.key.parameters) if batch.key.parameters else {}
    if binary:
        parameters["binary_data_output"] = True
    if any(part.pending.trace for part in batch.slices):
        requests = [{"rows": part.rows, **part.pending.trace} for part in batch.slices]
        parameters["requests"] = orjson.dumps(requests).decode()
    return parameters


def decode_answer(body: bytes | bytearray, header_length: bytes | None, signature: ModelSignature) -> Result:
    """Return the answer to a batch.

    Raises:
        ModelFailed: the runtime broke the protocol.
    """
    try:
        document, tail = split_body(body, header_length)
        outputs: dict[str, Array] = {}
        offset = 0
        for tensor in document.get("outputs") or ():
            array, size = _output(tensor, tail[offset:] if tail is not None else None, signature)
            offset += size
            outputs[tensor["name"]] = array
        return Result(outputs, _row_errors(document.get("parameters") or {}))
    except (InvalidRequest, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFailed(f"the runtime's answer breaks the protocol: {type(error).__name__}: {error}") from error


def _output(tensor: Mapping[str, Any], rest: memoryview | None, signature: ModelSignature) -> tuple[Array, int]:
    spec = signature.outputs.get(tensor["name"])
    if spec is None or spec.datatype != tensor["datatype"]:
        spec = OutputSpec(tensor["name"], tensor["datatype"], (), 0 if spec is None else spec.batch_dim)
    size = (tensor.get("parameters") or {}).get("binary_data_size")
    if size is None:
        return to_canonical(spec, _from_json(spec, tensor["data"], tensor["shape"])), 0
    if rest is None or size > len(rest):
        raise InvalidRequest(f"output {spec.name!r}: binary_data_size {size} is past the end")
    return to_canonical(spec, from_binary(spec, rest[:size], tensor["shape"])), size


def _from_json(spec: OutputSpec, data: Sequence[Any], shape: Sequence[int]) -> Array:
    import numpy as np  # noqa: PLC0415 (only for a foreign runtime without the binary extension)

    if spec.datatype == "BYTES":
        return bytes_array([str(element).encode() for element in data], tuple(shape))
    values = [float("nan") if value is None else value for value in data] if None in data else data
    return np.array(values, dtype=DTYPES[spec.datatype]).reshape(shape)


def _row_errors(parameters: Mapping[str, Any]) -> list[RowError]:
    text = parameters.get("errors")
    if not text:
        return []
    return [RowError(int(error["row"]), int(error["status"]), str(error["message"])) for error in orjson.loads(text)]


_BY_CODE: dict[str, type[ProxyError]] = {"OUT_OF_MEMORY": BatchTooLarge}
_BY_STATUS: dict[int, type[ProxyError]] = {
    400: InvalidRequest,
    503: RuntimeAway,
    504: DeadlineExceeded,
}


def decode_failure(status: int, body: bytes | bytearray) -> ProxyError:
    """Return what a runtime's error answer to a whole batch means for its callers."""
    try:
        document = orjson.loads(body)
        message, code = str(document["error"]), str(document.get("code", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code = bytes(body[:200]).decode("utf-8", "replace") or "no reason given", ""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ModelFailed)
    return kind(message)
