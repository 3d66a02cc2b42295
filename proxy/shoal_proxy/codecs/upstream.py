"""The wire to the runtime: batches out, answers in. See docs/reference/wire-protocol.md."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from shoal_proxy.batching.batch import Batch, Result, Rows
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
    RuntimeLost,
)
from shoal_proxy.model.signature import InputSpec, ModelSignature, OutputSpec
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.row_errors import RowError, decode_row_errors


def encode_batch(
    batch: Batch, inputs: Mapping[str, Rows], signature: ModelSignature, *, binary: bool
) -> tuple[bytes, list[bytes | memoryview]]:
    """Return the JSON part and the binary tensors that follow it; without ``binary`` everything is in the JSON."""
    tensors: list[dict[str, Any]] = []
    tail: list[bytes | memoryview] = []
    asked = orjson.loads(batch.key.tensors) if batch.key.tensors else {}
    for name, rows in inputs.items():
        tensor = _input(signature.inputs[name], rows, tail, binary=binary)
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


def _input(spec: InputSpec, rows: Rows, tail: list[bytes | memoryview], *, binary: bool) -> dict[str, Any]:
    if isinstance(rows, tuple) and binary and spec.batch_dim == 0:
        return _pieces(spec, rows, tail)
    array = np.concatenate(rows) if isinstance(rows, tuple) else rows
    return tensor_entry(spec, array, tail if binary else None, words=bytes.decode)


def _pieces(spec: InputSpec, rows: tuple[Array, ...], tail: list[bytes | memoryview]) -> dict[str, Any]:
    """Rows that lie one after another on the wire need not do so here."""
    tail.extend(to_binary(piece) for piece in rows)
    shape = (sum(len(piece) for piece in rows), *rows[0].shape[1:])
    size_bytes = sum(piece.nbytes for piece in rows)
    parameters = {"binary_data_size": size_bytes}
    return {"name": spec.name, "datatype": spec.datatype, "shape": shape, "parameters": parameters}


def check_json(inputs: Mapping[str, Array], signature: ModelSignature) -> None:
    """Refuse what cannot be told to a runtime without the binary extension.

    Each request is asked on its own: once a batch is written, it is too late for those who share it.

    Raises:
        InvalidRequest: bytes that are not text, NaN or an infinity.
    """
    for name, array in inputs.items():
        if what := _beyond_json(signature.inputs[name], array):
            raise InvalidRequest(f"input {name!r} holds {what}, and this runtime takes JSON only")


def _beyond_json(spec: InputSpec, array: Array) -> str:
    """Return what in ``array`` JSON has no words for, or nothing."""
    if not array.dtype.hasobject:
        numbers = widen_bf16(array) if spec.datatype == "BF16" else array
        return "" if np.isfinite(numbers).all() else "NaN or an infinity"
    try:
        for element in array.ravel().tolist():
            element.decode()
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    return ""


def _parameters(batch: Batch, *, binary: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = orjson.loads(batch.key.parameters) if batch.key.parameters else {}
    if binary:
        parameters["binary_data_output"] = True
    if any(part.pending.trace for part in batch.slices):
        requests = [{"rows": part.rows, **(part.pending.trace or {})} for part in batch.slices]
        parameters["requests"] = orjson.dumps(requests).decode()
    return parameters


def decode_answer(body: bytes | memoryview, header_length: bytes | None, signature: ModelSignature) -> Result:
    """Return the answer to a batch.

    Raises:
        ModelFailed: the runtime broke the protocol.
    """
    try:
        header, tail = (body, None) if header_length is None else split_body(body, header_length)
        document = parse_json(header)
        if not isinstance(document, dict):
            raise InvalidRequest("it is no JSON object")
        outputs: dict[str, Array] = {}
        offset = 0
        for tensor in document.get("outputs") or ():
            array, size = _output(tensor, tail[offset:] if tail is not None else None, signature)
            offset += size
            if tensor["name"] in outputs:
                raise InvalidRequest(f"output {tensor['name']!r} comes twice")
            outputs[tensor["name"]] = array
        if tail is not None and offset != len(tail):
            raise InvalidRequest(f"the outputs take {offset} binary bytes, but {len(tail)} came")
        parameters = document.get("parameters") or {}
        return Result(outputs, _row_errors(parameters), _forward_s(parameters))
    except (InvalidRequest, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ModelFailed(f"the runtime's answer breaks the protocol: {type(error).__name__}: {error}") from error


def _output(tensor: Mapping[str, Any], rest: memoryview | None, signature: ModelSignature) -> tuple[Array, int]:
    spec = signature.outputs.get(tensor["name"])
    if spec is None or spec.datatype != tensor["datatype"]:
        spec = OutputSpec(tensor["name"], tensor["datatype"], (), 0 if spec is None else spec.batch_dim)
    shape = tensor["shape"]
    if type(tensor["name"]) is not str or not all(type(length) is int and length >= 0 for length in shape):
        raise InvalidRequest(f"output {shown(tensor['name'])} has shape {shown(shape)}")
    size = (tensor.get("parameters") or {}).get("binary_data_size")
    if size is None:
        return to_canonical(spec, _from_json(spec, tensor["data"]).reshape(shape)), 0
    if rest is None or type(size) is not int or not 0 <= size <= len(rest):
        raise InvalidRequest(f"output {spec.name!r}: binary_data_size {shown(size)} is not what came")
    return to_canonical(spec, from_binary(spec, rest[:size], shape)), size


def _from_json(spec: OutputSpec, data: Any) -> Array:
    if type(data) is list and None in data:  # a NaN, as JSON writes it
        data = [float("nan") if value is None else value for value in data]
    if spec.datatype != "BF16":
        return from_json(spec, data)
    wide = from_json(replace(spec, datatype="FP32"), data)
    return (wide.view("<u4") >> 16).astype(DTYPES["BF16"])


def _forward_s(parameters: Mapping[str, Any]) -> float | None:
    """Return how long forward took, where the runtime tells it in a way that makes sense."""
    forward_us = parameters.get("forward_us")
    if not isinstance(forward_us, int | float) or not 0 <= forward_us < 1e12:
        return None
    return forward_us / 1e6


def _row_errors(parameters: Mapping[str, Any]) -> list[RowError]:
    text = parameters.get("errors")
    if not text:
        return []
    return list(decode_row_errors(orjson.loads(text)))


_BY_CODE: dict[str, type[ProxyError]] = {"OUT_OF_MEMORY": BatchTooLarge}
_REFUSALS = frozenset({400, 413, 415, 422, 431})
"""What servers say to a request that they do not take, before they run it."""
_BY_STATUS: dict[int, type[ProxyError]] = {
    **dict.fromkeys(_REFUSALS, InvalidRequest),
    429: RuntimeLost,
    503: RuntimeLost,
    504: DeadlineExceeded,
}


def decode_rows_failed(body: bytes | memoryview) -> RowsFailed | None:
    """Return the rows that failed on their own, as a sibling tells them to its caller; None where it tells none."""
    try:
        errors = list(decode_row_errors(orjson.loads(body)["errors"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return RowsFailed(errors) if errors else None


def decode_failure(status: int, body: bytes | memoryview, executed: bytes | None = None) -> ProxyError:
    """Return what a runtime's error answer to a whole batch means for its callers.

    ``executed`` is its word on that, ``no`` or ``maybe``; a foreign runtime says nothing, which may be either.
    """
    try:
        document = orjson.loads(body)
        message, code = str(document["error"]), str(document.get("code", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code = bytes(body[:200]).decode("utf-8", "replace") or f"it answers {status} and no reason", ""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ModelFailed)
    if executed == b"no" and kind is RuntimeLost:
        kind = NotExecuted
    error = kind(message)
    error.may_have_run = executed != b"no"
    if kind is InvalidRequest:
        error.status = status
    return error
