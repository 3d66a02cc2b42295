"""The Open Inference Protocol, V2: JSON and the binary tensor extension, in both directions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

import numpy as np
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
from shoal_proxy.codecs.classification import PARAMETER, check_classes, class_count
from shoal_proxy.codecs.columns import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    as_column,
    converted,
    has_rows_of_one,
    holds_one_number,
    listed,
    match,
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
_NOTHING: Final = InputSpec("", "BYTES", ())
"""What a tensor is that the model does not take, and that is ignored."""
_NO_ARRAY: Final[Array] = np.empty(0, np.uint8)


class V2:
    """Decode and encode ``POST /v2/models/{m}/infer``."""

    name = "v2"

    def __init__(self, *, ignore_extra: bool = False) -> None:
        self._fast: V2Fast | None = None
        self._ignore_extra = ignore_extra
        """Inputs that the model does not have; else they are rejected."""

    def decode(self, call: Call, signature: ModelSignature) -> Decoded:
        """Return the request's tensors; a raw body (an image, a text) is one row."""
        header_length = call.headers.get(HEADER_LENGTH)
        if header_length is None and not call.says_json and raw.is_raw(call.media_type):
            return raw.decode(call, signature, PLAIN)
        fast = self._fast
        if fast is None or fast.signature is not signature:
            fast = self._fast = V2Fast(signature)
        if header_length is not None:
            return _decode_binary(call.body, header_length, fast, ignore_extra=self._ignore_extra)
        document = parse_json(call.body)
        known = fast.row(document)
        if known is not None:
            return known
        return decode_document(document, None, signature, call.body, ignore_extra=self._ignore_extra)

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


def _decode_binary(body: bytes | memoryview, header_length: bytes, fast: V2Fast, *, ignore_extra: bool) -> Decoded:
    header, tail = split_body(body, header_length)
    known = fast.binary(header, tail)
    if known is not None:
        return known
    document = parse_json(header)
    decoded = decode_document(document, tail, fast.signature, header, ignore_extra=ignore_extra)
    fast.remember(header, document["inputs"], decoded)
    return decoded


def decode_document(
    document: Any,
    tail: memoryview | None,
    signature: ModelSignature,
    text: bytes | memoryview,
    *,
    ignore_extra: bool = False,
) -> Decoded:
    """Return what a V2 ``document`` asks, whose binary tensors are in ``tail``; ``text`` is the JSON it came in."""
    if type(document) is not dict or type(document.get("inputs")) is not list:
        raise InvalidRequest('a V2 request is an object with a list "inputs"')
    asked: dict[str, Any] = {}
    tensors = document["inputs"]
    inputs = _decode_inputs(tensors, tail, signature, asked, ignore_extra=ignore_extra)
    parameters = document.get("parameters")
    binary, timeout_ms, forwarded = take_parameters(parameters) if parameters is not None else (False, None, b"")
    style = _style(document, signature, asked, binary=binary)
    rows = next(iter(inputs.values())).shape[0] if signature.batches else 1
    if style.classes:
        check_classes(rows, sum(style.classes.values()))
    if asked or forwarded:
        check_integers(text)
    told = json_text(asked, orjson.OPT_SORT_KEYS) if asked else b""
    return Decoded(inputs, rows, style, parameters=forwarded, tensors=told, timeout_ms=timeout_ms)


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
    tensors: list[Any],
    tail: memoryview | None,
    signature: ModelSignature,
    asked: dict[str, Any],
    *,
    ignore_extra: bool,
) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    columns: dict[str, dict[str, Array]] = {}
    _check_names(tensors, signature, ignore_extra=ignore_extra)
    offset = 0
    for tensor in tensors:
        name = tensor["name"]
        spec, owner = _meant(tensor, signature)
        there = inputs if owner is None else columns.setdefault(owner.name, {})
        if name in there:
            raise InvalidRequest(f"{'input' if owner is None else 'column'} {name!r} is given twice")
        array, size = _decode_tensor(tensor, spec, tail[offset:] if tail is not None else None)
        offset += size
        if spec is not _NOTHING:
            there[name] = array
        parameters = tensor.get("parameters")
        if parameters and parameters.keys() != _OURS and spec is not _NOTHING:
            if owner is not None:
                raise InvalidRequest(f"column {name!r} has parameters; those of an input go with the input as a whole")
            extra = {key: value for key, value in parameters.items() if key not in _OURS}
            asked.setdefault("inputs", {})[name] = extra
    if tail is not None and offset != len(tail):
        raise InvalidRequest(
            f"the binary_data_size of all inputs adds up to {offset}, but {len(tail)} bytes follow the JSON"
        )
    for name, given in columns.items():
        inputs[name] = _side_by_side(signature.inputs[name], given)
    check_complete(inputs, signature)
    return inputs


def _check_names(tensors: list[Any], signature: ModelSignature, *, ignore_extra: bool) -> None:
    """Refuse tensors without a name, and names that the model does not have; an input's columns must all be there."""
    unknown: list[str] = []
    for tensor in tensors:
        if type(tensor) is not dict:
            raise InvalidRequest(
                f"each of the inputs must be an object with name, datatype and shape, not {shown(tensor)}"
            )
        name = tensor.get("name")
        if type(name) is not str:
            raise InvalidRequest(f"no input named {shown(name)}; the model takes {listed(list(signature.inputs))}")
        if name not in signature.inputs or name in signature.columns:
            unknown.append(name)
    if unknown:
        names = {tensor["name"]: tensor["name"] for tensor in tensors}
        first: dict[str, Any] = {tensor["name"]: None if _is_flat(tensor) else [] for tensor in tensors}
        match(names, first, signature, ignore_extra=ignore_extra)


def _meant(tensor: dict[str, Any], signature: ModelSignature) -> tuple[InputSpec, InputSpec | None]:
    """Return what a tensor is, and the input of which it is a column; `_NOTHING` of one to be ignored."""
    name, datatype = tensor["name"], tensor.get("datatype")
    spec = signature.inputs.get(name)
    if spec is not None and not (name in spec.columns and name in signature.columns and _is_flat(tensor)):
        if datatype == spec.datatype or is_widened(datatype, spec.datatype) or _are_numbers(datatype, spec):
            return spec, None
        raise InvalidRequest(f"input {spec.name!r} is {spec.datatype}, not {shown(datatype)}")
    if name not in signature.columns:
        return _NOTHING, None
    owner = signature.inputs[signature.columns[name][0]]
    column = InputSpec(name, owner.datatype, (-1,), nullable=owner.nullable)
    if datatype != owner.datatype and not _are_numbers(datatype, column):
        raise InvalidRequest(f"column {name!r} is {owner.datatype}, not {shown(datatype)}")
    return column, owner


def _is_flat(tensor: dict[str, Any]) -> bool:
    """Return whether a tensor that has the name of an input and of one of its columns is that column."""
    shape = tensor.get("shape")
    return type(shape) is list and len(shape) == 1


def _are_numbers(datatype: Any, spec: InputSpec) -> bool:
    """Return whether numbers of a datatype may become an input's, each of its own: an input of one a row."""
    if type(datatype) is not str:
        return False
    if spec.datatype == "BYTES":
        return has_rows_of_one(spec) and datatype in INTEGERS and bool(spec.unit)
    return holds_one_number(spec) and (datatype in NUMBERS or datatype == "BOOL")


def _side_by_side(spec: InputSpec, columns: dict[str, Array]) -> Array:
    """Return columns as the rows of an input, in its own order."""
    rows = {len(array) for array in columns.values()}
    if len(rows) > 1:
        raise InvalidRequest(f"the columns of input {spec.name!r} differ in their number of rows: {sorted(rows)}")
    stacked = np.empty((rows.pop(), len(spec.columns)), DTYPES[spec.datatype])
    for at, name in enumerate(spec.columns):
        stacked[:, at] = columns[name]
    return stacked


def _decode_tensor(tensor: dict[str, Any], spec: InputSpec, rest: memoryview | None) -> tuple[Array, int]:
    """Return the canonical array and how many binary bytes it took."""
    parameters = tensor.get("parameters")
    if parameters is not None and type(parameters) is not dict:
        raise InvalidRequest(f"input {spec.name!r}: parameters must be an object")
    size = (parameters or {}).get("binary_data_size")
    if (size is None) == ("data" not in tensor):
        raise InvalidRequest(f"input {spec.name!r} must have either data or a binary_data_size")
    if size is not None and rest is None:
        raise InvalidRequest("binary data needs the header Inference-Header-Content-Length")
    if rest is not None and size is not None and (type(size) is not int or not 0 <= size <= len(rest)):
        raise InvalidRequest(
            f"input {spec.name!r}: binary_data_size is {shown(size)}, but {len(rest)} bytes are left in the body"
        )
    if spec is _NOTHING:
        return _NO_ARRAY, size or 0
    shape = _shape_of(spec, tensor.get("shape"))
    datatype = tensor["datatype"]
    if datatype == spec.datatype or (size is None and is_widened(datatype, spec.datatype)):
        array = _array(tensor, spec, shape, rest, size)
    else:
        nullable = spec.nullable and size is None and spec.datatype != "BYTES"
        given = InputSpec(spec.name, datatype, spec.shape, spec.batch_dim, nullable=nullable and datatype in FLOATS)
        array = converted(spec, _array(tensor, given, shape, rest, size), datatype)
    return as_column(spec, to_canonical(spec, array)), size or 0


def _shape_of(spec: InputSpec, shape: Any) -> list[int]:
    """Return the wire shape that a tensor is said to have: of one value a row also [n, 1] for [n]."""
    if spec.shape == (-1,) and type(shape) is list and len(shape) == 2 and shape[1] == 1 and type(shape[1]) is int:
        return [*wire_shape_of(spec, shape[:1]), 1]
    if spec.shape == (-1, 1) and spec.batch_dim == 0 and type(shape) is list and len(shape) == 1:
        return wire_shape_of(replace(spec, shape=(-1,), one_row=None), shape)
    return wire_shape_of(spec, shape)


def _array(
    tensor: dict[str, Any], spec: InputSpec, shape: list[int], rest: memoryview | None, size: int | None
) -> Array:
    if rest is not None and size is not None:
        return from_binary(spec, rest[:size], shape)
    array = from_json(spec, tensor["data"], flags=holds_one_number(spec))
    return array if array.shape == tuple(shape) else _reshaped(spec, array, shape)


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
    outputs, classes = _wanted(wanted, signature, asked)
    return Style(id_, outputs, binary, classes or None)


def _wanted(
    wanted: list[Any], signature: ModelSignature, asked: dict[str, Any]
) -> tuple[dict[str, bool | None], dict[str, int]]:
    """Return whether each output is to be binary, and of how many classes; what is the model's goes to ``asked``."""
    outputs: dict[str, bool | None] = {}
    classes: dict[str, int] = {}
    for output in wanted:
        name, extra = _output_asked(output, signature)
        if name in outputs:
            raise InvalidRequest(f"output {name!r} is asked for twice")
        outputs[name] = _flag("binary_data", extra.pop("binary_data", None))
        if PARAMETER in extra:
            classes[name] = class_count(signature.outputs[name], extra.pop(PARAMETER))
        if extra:
            asked.setdefault("outputs", {})[name] = extra
    return outputs, classes


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
