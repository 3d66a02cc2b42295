"""The Open Inference Protocol, V2: JSON and the binary tensor extension, in both directions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import orjson

from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import (
    Call,
    Decoded,
    Reply,
    check_integers,
    error_document,
    json_reply,
    json_text,
    parse_json,
    shown,
)
from shoal_proxy.codecs.tensors import (
    from_binary,
    from_json,
    to_canonical,
    wire_shape_of,
)
from shoal_proxy.codecs.v2_answer import ALL_BINARY, HEADER_LENGTH, PLAIN, Style, encode_answer
from shoal_proxy.codecs.v2_fast import V2Fast
from shoal_proxy.errors import InvalidRequest, ProxyError
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.datatypes import DTYPES, Array, is_widened

_OURS = {"binary_data_size"}
"""Tensor parameters that are the protocol's own, not the model's."""


class V2:
    """Decode and encode ``POST /v2/models/{m}/infer``."""

    name = "v2"

    def __init__(self) -> None:
        self._fast: V2Fast | None = None

    def decode(self, call: Call, signature: ModelSignature) -> Decoded:
        """Return the request's tensors; a raw body (an image, a text) is one row."""
        header_length = call.headers.get(HEADER_LENGTH)
        if header_length is None and not call.says_json and raw.is_raw(call.media_type):
            return raw.decode(call, signature, PLAIN)
        fast = self._fast
        if fast is None or fast.signature is not signature:
            fast = self._fast = V2Fast(signature)
        if header_length is not None:
            return _decode_binary(call.body, header_length, fast)
        document = parse_json(call.body)
        known = fast.row(document)
        return decode_document(document, None, signature, call.body) if known is None else known

    def encode(
        self,
        decoded: Decoded,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> Reply:
        """Return the outputs the caller asked for, JSON or binary each."""
        fast = self._fast.answer(decoded.style, outputs, signature) if self._fast is not None else None
        return encode_answer(decoded.style, outputs, signature) if fast is None else fast

    def error(self, error: ProxyError) -> Reply:
        """Return ``{"error": ...}``."""
        return json_reply(error.status, error_document(error))


def _decode_binary(body: bytes | memoryview, header_length: bytes, fast: V2Fast) -> Decoded:
    header, tail = split_body(body, header_length)
    known = fast.binary(header, tail)
    if known is not None:
        return known
    document = parse_json(header)
    decoded = decode_document(document, tail, fast.signature, header)
    fast.remember(header, document["inputs"], decoded)
    return decoded


def decode_document(
    document: Any, tail: memoryview | None, signature: ModelSignature, text: bytes | memoryview
) -> Decoded:
    """Return what a V2 ``document`` asks, whose binary tensors are in ``tail``; ``text`` is the JSON it came in."""
    if type(document) is not dict or type(document.get("inputs")) is not list:
        raise InvalidRequest('a V2 request is an object with a list "inputs"')
    asked: dict[str, Any] = {}
    inputs = _decode_inputs(document["inputs"], tail, signature, asked)
    parameters = document.get("parameters")
    binary, timeout_ms, forwarded = take_parameters(parameters) if parameters is not None else (False, None, b"")
    style = _style(document, signature, asked, binary=binary)
    rows = next(iter(inputs.values())).shape[0] if signature.batches else 1
    if asked or forwarded:
        check_integers(text)
    tensors = json_text(asked, orjson.OPT_SORT_KEYS) if asked else b""
    return Decoded(inputs, rows, style, parameters=forwarded, tensors=tensors, timeout_ms=timeout_ms)


def split_body(body: bytes | memoryview, header_length: bytes) -> tuple[bytes, memoryview]:
    """Return the JSON part of a body and the binary rest."""
    # int() alone would take "+5", " 5" and "1_000", and choke on digits by the thousand.
    length = int(header_length) if header_length.isdigit() and len(header_length) < 20 else -1
    if not 0 <= length <= len(body):
        raise InvalidRequest(
            f"Inference-Header-Content-Length is {shown(header_length.decode('latin-1'))};"
            f" it must be the length of the JSON part, 0 to {len(body)} (the whole body)"
        )
    view = memoryview(body)
    return bytes(view[:length]), view[length:]


def _decode_inputs(
    tensors: list[Any], tail: memoryview | None, signature: ModelSignature, asked: dict[str, Any]
) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    offset = 0
    for tensor in tensors:
        spec = _input_named(tensor, signature)
        if spec.name in inputs:
            raise InvalidRequest(f"input {spec.name!r} is given twice")
        array, size = _decode_tensor(tensor, spec, tail[offset:] if tail is not None else None)
        offset += size
        inputs[spec.name] = array
        parameters = tensor.get("parameters")
        if parameters and parameters.keys() != _OURS:
            extra = {key: value for key, value in parameters.items() if key not in _OURS}
            asked.setdefault("inputs", {})[spec.name] = extra
    if tail is not None and offset != len(tail):
        raise InvalidRequest(
            f"the binary_data_size of all inputs adds up to {offset}, but {len(tail)} bytes follow the JSON"
        )
    check_complete(inputs, signature)
    return inputs


def _input_named(tensor: Any, signature: ModelSignature) -> InputSpec:
    if type(tensor) is not dict:
        raise InvalidRequest(f"each of the inputs must be an object with name, datatype and shape, not {shown(tensor)}")
    name = tensor.get("name")
    spec = signature.inputs.get(name) if type(name) is str else None
    if spec is None:
        raise InvalidRequest(f"no input named {shown(name)}; the model takes {', '.join(map(repr, signature.inputs))}")
    datatype = tensor.get("datatype")
    if datatype != spec.datatype and not is_widened(datatype, spec.datatype):
        raise InvalidRequest(f"input {spec.name!r} is {spec.datatype}, not {shown(datatype)}")
    return spec


def _decode_tensor(tensor: dict[str, Any], spec: InputSpec, rest: memoryview | None) -> tuple[Array, int]:
    """Return the canonical array and how many binary bytes it took."""
    shape = wire_shape_of(spec, tensor.get("shape"))
    parameters = tensor.get("parameters")
    if parameters is not None and type(parameters) is not dict:
        raise InvalidRequest(f"input {spec.name!r}: parameters must be an object")
    size = (parameters or {}).get("binary_data_size")
    if (size is None) == ("data" not in tensor):
        raise InvalidRequest(f"input {spec.name!r} must have either data or a binary_data_size")
    if size is None:
        array = from_json(spec, tensor["data"])
        if array.shape != tuple(shape):
            array = _reshaped(spec, array, shape)
        return to_canonical(spec, array), 0
    if rest is None:
        raise InvalidRequest("binary data needs the header Inference-Header-Content-Length")
    if type(size) is not int or not 0 <= size <= len(rest):
        raise InvalidRequest(
            f"input {spec.name!r}: binary_data_size is {shown(size)}, but {len(rest)} bytes are left in the body"
        )
    if tensor["datatype"] == spec.datatype:
        return to_canonical(spec, from_binary(spec, rest[:size], shape)), size
    narrow = from_binary(replace(spec, datatype=tensor["datatype"]), rest[:size], shape)
    return to_canonical(spec, narrow.astype(DTYPES[spec.datatype])), size


def _reshaped(spec: InputSpec, array: Array, shape: list[int]) -> Array:
    """Give flat data its shape; nested data must have it already."""
    size = prod(shape)
    if array.ndim != 1 or array.size != size:
        given = f"{array.size} values" if array.ndim == 1 else f"data of shape {list(array.shape)}"
        raise InvalidRequest(f"input {spec.name!r} has {given}, but its shape {shown(shape)} holds {size}")
    return array.reshape(shape)


def check_complete(inputs: Mapping[str, Array], signature: ModelSignature) -> None:
    """Refuse a request that lacks an input, or whose inputs differ in rows."""
    for name, spec in signature.inputs.items() if len(inputs) < len(signature.inputs) else ():
        if name not in inputs and not spec.optional:
            raise InvalidRequest(f"input {name!r} is missing")
    if not inputs:
        raise InvalidRequest("the request has no input")
    if len(inputs) > 1 and signature.batches:
        rows = {name: array.shape[0] for name, array in inputs.items()}
        if len(set(rows.values())) > 1:
            raise InvalidRequest(f"inputs differ in their number of rows: {rows}")


def take_parameters(parameters: Any) -> tuple[bool, float | None, bytes]:
    """Return what is meant for us, binary output and a time-out, and the rest as JSON text for the model."""
    if type(parameters) is not dict:
        raise InvalidRequest("parameters must be an object")
    if "requests" in parameters:
        raise InvalidRequest("parameters.requests is the proxy's own word to the runtime; choose another name")
    rest = dict(parameters)
    binary = rest.pop("binary_data_output", None)
    timeout_us = rest.pop("timeout", None)
    if timeout_us is not None and (type(timeout_us) not in (int, float) or not timeout_us > 0):
        raise InvalidRequest(f"parameters.timeout must be a positive number of microseconds, not {shown(timeout_us)}")
    forwarded = json_text(rest, orjson.OPT_SORT_KEYS) if rest else b""
    return bool(_flag("binary_data_output", binary)), None if timeout_us is None else timeout_us / 1000, forwarded


def _flag(key: str, value: Any) -> bool | None:
    if value is not None and type(value) is not bool:
        raise InvalidRequest(f"{key} must be true or false, not {shown(value)}")
    return value


def _style(document: dict[str, Any], signature: ModelSignature, asked: dict[str, Any], *, binary: bool) -> Style:
    id_, wanted = document.get("id"), document.get("outputs")
    if id_ is None and wanted is None:
        return ALL_BINARY if binary else PLAIN
    if id_ is not None and type(id_) is not str:
        raise InvalidRequest(f"id must be a string, not {shown(id_)}")
    if wanted is not None and type(wanted) is not list:
        raise InvalidRequest('"outputs" must be a list')
    if not wanted:
        return Style(id_, None, binary)
    outputs: dict[str, bool | None] = {}
    for output in wanted:
        name, extra = _output_asked(output, signature)
        if name in outputs:
            raise InvalidRequest(f"output {name!r} is asked for twice")
        outputs[name] = _flag("binary_data", extra.pop("binary_data", None))
        if extra:
            asked.setdefault("outputs", {})[name] = extra
    return Style(id_, outputs, binary)


def _output_asked(output: Any, signature: ModelSignature) -> tuple[str, dict[str, Any]]:
    """Return the name of an output that a caller asks for, and its parameters."""
    if type(output) is not dict:
        raise InvalidRequest(f"each of the outputs must be an object with a name, not {shown(output)}")
    name, parameters = output.get("name"), output.get("parameters")
    if type(name) is not str or name not in signature.outputs:
        raise InvalidRequest(
            f"no output named {shown(name)}; the model gives {', '.join(map(repr, signature.outputs))}"
        )
    if parameters is not None and type(parameters) is not dict:
        raise InvalidRequest(f"output {name!r}: parameters must be an object")
    return name, dict(parameters or {})
