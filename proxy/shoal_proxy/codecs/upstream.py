"""Encode batches for the runtime and decode its responses (docs/reference/wire-protocol.md)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from shoal_proxy.batching.batch import Batch, BatchResult, Rows
from shoal_proxy.codecs.base import parse_json, shown
from shoal_proxy.codecs.tensors import from_binary, from_json, tensor_entry, to_binary, to_canonical, widen_bf16
from shoal_proxy.codecs.v2 import split_body
from shoal_proxy.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    NotExecuted,
    ProxyError,
    RowsFailed,
    RuntimeBusy,
    RuntimeLost,
    RuntimeUnavailable,
)
from shoal_proxy.model.signature import ModelSignature, OutputSpec
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.row_errors import decode_row_errors


def encode_batch(
    batch: Batch, inputs: Mapping[str, Rows], signature: ModelSignature, *, binary: bool
) -> tuple[bytes, list[bytes | memoryview]]:
    """Encode a batch for the runtime.

    Returns:
        The JSON part, and the binary tensors that follow it: none if ``binary`` is false.
    """
    tensors: list[dict[str, Any]] = []
    tail: list[bytes | memoryview] = []
    # Parameters of tensors are part of the batch key: all requests of the batch have the same.
    forwarded = orjson.loads(batch.key.tensors) if batch.key.tensors else {}
    for name, rows in inputs.items():
        spec = signature.inputs[name]
        if isinstance(rows, tuple) and binary and spec.batch_dim == 0:
            # Pieces of rows are consecutive on the wire, so they need not be copied into one array.
            tail.extend(to_binary(piece) for piece in rows)
            tensor: dict[str, Any] = {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": (sum(len(piece) for piece in rows), *rows[0].shape[1:]),
                "parameters": {"binary_data_size": sum(piece.nbytes for piece in rows)},
            }
        else:
            array = np.concatenate(rows) if isinstance(rows, tuple) else rows
            tensor = tensor_entry(spec, array, tail if binary else None, words=bytes.decode)
        if extra := forwarded.get("inputs", {}).get(name):
            tensor["parameters"] = {**extra, **tensor.get("parameters", {})}
        tensors.append(tensor)
    document: dict[str, Any] = {"inputs": tensors}
    if outputs := forwarded.get("outputs"):
        document["outputs"] = [
            {"name": name, "parameters": outputs[name]} if name in outputs else {"name": name}
            for name in signature.outputs
        ]
    parameters: dict[str, Any] = orjson.loads(batch.key.parameters) if batch.key.parameters else {}
    if binary:
        parameters["binary_data_output"] = True
    if any(part.pending.trace for part in batch.slices):
        requests = [{"rows": part.rows, **(part.pending.trace or {})} for part in batch.slices]
        parameters["requests"] = orjson.dumps(requests).decode()
    if parameters:
        document["parameters"] = parameters
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY), tail


def check_json(inputs: Mapping[str, Array], signature: ModelSignature) -> None:
    """Reject values that a runtime without the binary extension cannot receive.

    Each request is checked before batching, so that it cannot fail others in its batch.

    Raises:
        InvalidRequest: an input has bytes that are not text, NaN or an infinity.
    """
    for name, array in inputs.items():
        fault = ""
        if not array.dtype.hasobject:
            numbers = widen_bf16(array) if signature.inputs[name].datatype == "BF16" else array
            fault = "" if np.isfinite(numbers).all() else "NaN or an infinity"
        else:
            try:
                for element in array.ravel().tolist():
                    element.decode()
            except UnicodeDecodeError:
                fault = "bytes that are not UTF-8"
        if fault:
            raise InvalidRequest(f"input {name!r} has {fault}, but this runtime accepts only JSON")


def decode_result(body: bytes | memoryview, header_length: bytes | None, signature: ModelSignature) -> BatchResult:
    """Decode the runtime's response to a batch.

    Raises:
        ModelFailed: the response violates the protocol.
    """
    try:
        header, tail = (body, None) if header_length is None else split_body(body, header_length)
        document = parse_json(header)
        if not isinstance(document, dict):
            raise InvalidRequest("the document is not a JSON object")
        outputs: dict[str, Array] = {}
        offset = 0
        for tensor in document.get("outputs") or ():
            array, size = _output(tensor, tail[offset:] if tail is not None else None, signature)
            offset += size
            if tensor["name"] in outputs:
                raise InvalidRequest(f"output {tensor['name']!r} occurs twice")
            outputs[tensor["name"]] = array
        if tail is not None and offset != len(tail):
            raise InvalidRequest(f"the outputs have {offset} binary bytes, but the body has {len(tail)}")
        parameters = document.get("parameters") or {}
        errors = list(decode_row_errors(orjson.loads(parameters["errors"]))) if parameters.get("errors") else []
        # Other V2 servers do not report how long the forward pass took.
        forward_us = parameters.get("forward_us")
        forward_s = None
        if isinstance(forward_us, int | float) and 0 <= forward_us < 1e12:
            forward_s = forward_us / 1e6
        return BatchResult(outputs, errors, forward_s)
    except (InvalidRequest, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ModelFailed(f"the runtime's response violates the protocol: {type(error).__name__}: {error}") from error


def _output(tensor: Mapping[str, Any], rest: memoryview | None, signature: ModelSignature) -> tuple[Array, int]:
    spec = signature.outputs.get(tensor["name"])
    if spec is None or spec.datatype != tensor["datatype"]:
        # An undeclared output, or one with another datatype, is decoded as it was sent.
        spec = OutputSpec(tensor["name"], tensor["datatype"], (), 0 if spec is None else spec.batch_dim)
    shape = tensor["shape"]
    if type(tensor["name"]) is not str or not all(type(length) is int and length >= 0 for length in shape):
        raise InvalidRequest(f"output {shown(tensor['name'])} has shape {shown(shape)}")
    size = (tensor.get("parameters") or {}).get("binary_data_size")
    if size is None:
        data = tensor["data"]
        if type(data) is list and None in data:  # JSON writes NaN as null
            data = [float("nan") if value is None else value for value in data]
        if spec.datatype != "BF16":
            return to_canonical(spec, from_json(spec, data).reshape(shape)), 0
        wide = from_json(replace(spec, datatype="FP32"), data)
        narrow = (wide.view("<u4") >> 16).astype(DTYPES["BF16"])  # bfloat16 is the upper half of a float32
        return to_canonical(spec, narrow.reshape(shape)), 0
    if rest is None or type(size) is not int or not 0 <= size <= len(rest):
        raise InvalidRequest(f"output {spec.name!r}: binary_data_size {shown(size)} exceeds the body")
    return to_canonical(spec, from_binary(spec, rest[:size], shape)), size


_BY_CODE: dict[str, type[ProxyError]] = {"OUT_OF_MEMORY": BatchTooLarge, "DEVICE_LOST": RuntimeLost}
_REFUSALS = frozenset({400, 413, 415, 422, 431})
"""Statuses with which servers reject a request before they run it."""
_BY_STATUS: dict[int, type[ProxyError]] = {
    **dict.fromkeys(_REFUSALS, InvalidRequest),
    429: RuntimeBusy,
    503: RuntimeBusy,
    504: DeadlineExceeded,
}


def decode_rows_failed(body: bytes | memoryview) -> RowsFailed | None:
    """Return the failed rows in a peer's error response; None if there are none."""
    try:
        errors = list(decode_row_errors(orjson.loads(body)["errors"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return RowsFailed(errors) if errors else None


def decode_failure(status: int, body: bytes | memoryview, executed: bytes | None = None) -> ProxyError:
    """Convert the runtime's error response to an error for the batch's clients.

    ``executed`` is ``no`` or ``maybe``; without it (other V2 servers) the batch may have run.
    """
    try:
        # Other V2 servers may send any body with an error.
        document = orjson.loads(body)
        message, code = str(document["error"]), str(document.get("code", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = bytes(body[:200]).decode("utf-8", "replace")
        message, code = text or f"the runtime returned {status} without a reason", ""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ModelFailed)
    # The runtime rejected the batch before it ran.
    if executed == b"no" and issubclass(kind, RuntimeUnavailable):
        kind = NotExecuted
    error = kind(message)
    error.may_have_run = executed != b"no"
    if kind is InvalidRequest:
        # The client gets the server's own 4xx status.
        error.status = status
    return error
