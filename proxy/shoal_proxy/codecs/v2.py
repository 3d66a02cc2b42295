"""The Open Inference Protocol, V2: JSON and the binary tensor extension."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

import numpy as np
import orjson

from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import (
    DecodedRequest,
    HttpResponse,
    InferCall,
    check_integers,
    error_document,
    json_response,
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
from shoal_proxy.codecs.v2_fast import V2Fast
from shoal_proxy.codecs.v2_response import ALL_BINARY, HEADER_LENGTH, PLAIN, ResponseStyle, encode_response
from shoal_proxy.errors import InvalidRequest, ProxyError
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.datatypes import DTYPES, Array, is_widened

_OURS = {"binary_data_size"}
"""Tensor parameters of the protocol, which are not forwarded to the model."""
_NOTHING: Final = InputSpec("", "BYTES", ())
"""Stands for a tensor that the model does not have, and that is ignored."""
_NO_ARRAY: Final[Array] = np.empty(0, np.uint8)


class V2:
    """Codec of ``POST /v2/models/{m}/infer``."""

    def __init__(self, *, ignore_extra: bool = False) -> None:
        self._fast: V2Fast | None = None
        self._ignore_extra = ignore_extra
        """Whether unknown inputs are ignored; otherwise they are rejected."""

    def decode(self, call: InferCall, signature: ModelSignature) -> DecodedRequest:
        """Decode JSON and binary tensors, or a raw body (an image, a text) as one row."""
        header_length = call.headers.get(HEADER_LENGTH)
        if header_length is None and not call.is_json and raw.is_raw(call.media_type):
            return raw.decode(call, signature, PLAIN)
        fast = self._fast
        # A new signature, after a reload of the model, needs new caches.
        if fast is None or fast.signature is not signature:
            fast = self._fast = V2Fast(signature)
        if header_length is not None:
            header, tail = split_body(call.body, header_length)
            cached = fast.binary(header, tail)
            if cached is not None:
                return cached
            document = parse_json(header)
            decoded = decode_document(document, tail, signature, header, ignore_extra=self._ignore_extra)
            fast.remember(header, document["inputs"], decoded)
            return decoded
        document = parse_json(call.body)
        known = fast.row(document)
        if known is not None:
            return known
        return decode_document(document, None, signature, call.body, ignore_extra=self._ignore_extra)

    def encode(
        self,
        decoded: DecodedRequest,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> HttpResponse:
        """Return the response with the requested outputs, each as JSON or binary."""
        fast = self._fast.encode_response(decoded.style, outputs, signature) if self._fast is not None else None
        return encode_response(decoded.style, outputs, signature) if fast is None else fast

    def error(self, error: ProxyError) -> HttpResponse:
        """Return the response ``{"error": ...}``."""
        return json_response(error.status, error_document(error))


def decode_document(
    document: Any,
    tail: memoryview | None,
    signature: ModelSignature,
    text: bytes | memoryview,
    *,
    ignore_extra: bool = False,
) -> DecodedRequest:
    """Decode a V2 ``document``, parsed from ``text``, with binary data in ``tail``."""
    if type(document) is not dict or type(document.get("inputs")) is not list:
        raise InvalidRequest('a V2 request must be an object with a list "inputs"')
    # Parameters of single tensors to forward: {"inputs": {NAME: {...}}, "outputs": {...}}.
    extras: dict[str, Any] = {}
    tensors = document["inputs"]
    inputs = _decode_inputs(tensors, tail, signature, extras, ignore_extra=ignore_extra)
    parameters = document.get("parameters")
    binary, timeout_ms, forwarded = take_parameters(parameters) if parameters is not None else (False, None, b"")
    style = _style(document, signature, extras, binary=binary)
    rows = next(iter(inputs.values())).shape[0] if signature.batches else 1
    if style.classes:
        check_classes(rows, sum(style.classes.values()))
    if extras or forwarded:
        check_integers(text)
    # Sorted keys: requests with equal parameters may share a batch.
    forwarded_extras = json_text(extras, orjson.OPT_SORT_KEYS) if extras else b""
    return DecodedRequest(inputs, rows, style, parameters=forwarded, tensors=forwarded_extras, timeout_ms=timeout_ms)


def split_body(body: bytes | memoryview, header_length: bytes) -> tuple[bytes, memoryview]:
    """Split a body into its JSON part and the binary rest."""
    # int() alone would accept "+5", " 5" and "1_000", and raise for thousands of digits.
    length = int(header_length) if header_length.isdigit() and len(header_length) < 20 else -1
    if not 0 <= length <= len(body):
        raise InvalidRequest(
            f"Inference-Header-Content-Length must be the length of the JSON part, 0 to {len(body)} (the whole body),"
            f" not {shown(header_length.decode('latin-1'))}"
        )
    view = memoryview(body)
    return bytes(view[:length]), view[length:]


def _decode_inputs(
    tensors: list[Any],
    tail: memoryview | None,
    signature: ModelSignature,
    extras: dict[str, Any],
    *,
    ignore_extra: bool,
) -> dict[str, Array]:
    """Decode all tensors of a request.

    Parameters that must be forwarded to the runtime are added to ``extras``.
    """
    inputs: dict[str, Array] = {}
    # Columns of inputs, by input: a table may be sent as one tensor per column.
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
                raise InvalidRequest(f"column {name!r} must not have parameters; only a whole input can have them")
            extra = {key: value for key, value in parameters.items() if key not in _OURS}
            extras.setdefault("inputs", {})[name] = extra
    if tail is not None and offset != len(tail):
        raise InvalidRequest(
            f"the binary_data_size of all inputs adds up to {offset}, but {len(tail)} bytes follow the JSON"
        )
    for name, given in columns.items():
        owner = signature.inputs[name]
        rows = {len(array) for array in given.values()}
        if len(rows) > 1:
            raise InvalidRequest(f"the columns of input {name!r} differ in their number of rows: {sorted(rows)}")
        stacked = np.empty((rows.pop(), len(owner.columns)), DTYPES[owner.datatype])
        for at, column in enumerate(owner.columns):
            stacked[:, at] = given[column]
        inputs[name] = stacked
    check_complete(inputs, signature)
    return inputs


def _check_names(tensors: list[Any], signature: ModelSignature, *, ignore_extra: bool) -> None:
    """Reject a request in which the name of a tensor is missing or unknown.

    Unknown names are accepted if ``ignore_extra``. A request with only some columns of an input is rejected, too.
    """
    unknown: list[str] = []
    for tensor in tensors:
        if type(tensor) is not dict:
            raise InvalidRequest(
                f"each of the inputs must be an object with name, datatype and shape, not {shown(tensor)}"
            )
        name = tensor.get("name")
        if type(name) is not str:
            raise InvalidRequest(f"unknown input {shown(name)}; the model has {listed(list(signature.inputs))}")
        if name not in signature.inputs or name in signature.columns:
            # Columns of inputs are matched below, too.
            unknown.append(name)
    if unknown:
        names = {tensor["name"]: tensor["name"] for tensor in tensors}
        first: dict[str, Any] = {tensor["name"]: None if _is_flat(tensor) else [] for tensor in tensors}
        match(names, first, signature, ignore_extra=ignore_extra)


def _meant(tensor: dict[str, Any], signature: ModelSignature) -> tuple[InputSpec, InputSpec | None]:
    """Return the declaration of a tensor, and the input it is a column of.

    The second is None for a whole input. An unknown tensor, to be ignored, gets the declaration `_NOTHING`.
    """
    name, datatype = tensor["name"], tensor.get("datatype")
    spec = signature.inputs.get(name)
    if spec is not None and not (name in spec.columns and name in signature.columns and _is_flat(tensor)):
        if datatype == spec.datatype or is_widened(datatype, spec.datatype) or _are_numbers(datatype, spec):
            return spec, None
        raise InvalidRequest(f"input {spec.name!r} is {spec.datatype}, not {shown(datatype)}")
    if name not in signature.columns:
        return _NOTHING, None
    owner = signature.inputs[signature.columns[name][0]]
    # A column is like an input of one value per row.
    column = InputSpec(name, owner.datatype, (-1,), nullable=owner.nullable)
    if datatype != owner.datatype and not _are_numbers(datatype, column):
        raise InvalidRequest(f"column {name!r} is {owner.datatype}, not {shown(datatype)}")
    return column, owner


def _is_flat(tensor: dict[str, Any]) -> bool:
    """Return whether a tensor has one dimension, as a column has.

    An input may have the same name as one of its columns.
    """
    shape = tensor.get("shape")
    return type(shape) is list and len(shape) == 1


def _are_numbers(datatype: Any, spec: InputSpec) -> bool:
    """Return whether numbers of a datatype are converted to the input's datatype."""
    if type(datatype) is not str:
        return False
    if spec.datatype == "BYTES":
        return has_rows_of_one(spec) and datatype in INTEGERS and bool(spec.unit)
    return holds_one_number(spec) and (datatype in NUMBERS or datatype == "BOOL")


def _decode_tensor(tensor: dict[str, Any], spec: InputSpec, rest: memoryview | None) -> tuple[Array, int]:
    """Return a tensor's canonical array, and the size of its binary data."""
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
    shape = tensor.get("shape")
    if type(shape) is list and spec.shape == (-1,) and len(shape) == 2 and type(shape[1]) is int and shape[1] == 1:
        # A row of one value may also have the shape [n, 1] for [n] ...
        shape = [*wire_shape_of(spec, shape[:1]), 1]
    elif type(shape) is list and spec.shape == (-1, 1) and spec.batch_dim == 0 and len(shape) == 1:
        # ... or [n] for [n, 1].
        shape = wire_shape_of(replace(spec, shape=(-1,), one_row=None), shape)
    else:
        shape = wire_shape_of(spec, shape)
    datatype = tensor["datatype"]
    if datatype == spec.datatype or (size is None and is_widened(datatype, spec.datatype)):
        array = _array(tensor, spec, shape, rest, size)
    else:
        # In JSON, null in floating-point numbers stands for NaN.
        nullable = spec.nullable and size is None and spec.datatype != "BYTES"
        given = InputSpec(spec.name, datatype, spec.shape, spec.batch_dim, nullable=nullable and datatype in FLOATS)
        array = converted(spec, _array(tensor, given, shape, rest, size), datatype)
    return as_column(spec, to_canonical(spec, array)), size or 0


def _array(
    tensor: dict[str, Any], spec: InputSpec, shape: list[int], rest: memoryview | None, size: int | None
) -> Array:
    if rest is not None and size is not None:
        return from_binary(spec, rest[:size], shape)
    array = from_json(spec, tensor["data"], flags=holds_one_number(spec))
    if array.shape == tuple(shape):
        return array
    # Flat data gets its shape here; nested data must have it already.
    count = prod(shape)
    if array.ndim != 1 or array.size != count:
        given = f"{array.size} values" if array.ndim == 1 else f"data of shape {list(array.shape)}"
        raise InvalidRequest(f"input {spec.name!r} has {given}, but its shape {shown(shape)} has {count} values")
    return array.reshape(shape)


def check_complete(inputs: Mapping[str, Array], signature: ModelSignature) -> None:
    """Reject a request with a missing input, or with inputs of different row counts."""
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
    """Split parameters into binary output flag, timeout (ms), and other JSON text."""
    if type(parameters) is not dict:
        raise InvalidRequest("parameters must be an object")
    if "requests" in parameters:
        raise InvalidRequest("parameters.requests is reserved. Use another name")
    # What remains after the protocol's own parameters is forwarded to the model.
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


def _style(
    document: dict[str, Any], signature: ModelSignature, extras: dict[str, Any], *, binary: bool
) -> ResponseStyle:
    id_, wanted = document.get("id"), document.get("outputs")
    if id_ is None and wanted is None:
        return ALL_BINARY if binary else PLAIN
    if id_ is not None and type(id_) is not str:
        raise InvalidRequest(f"id must be a string, not {shown(id_)}")
    if wanted is not None and type(wanted) is not list:
        raise InvalidRequest('"outputs" must be a list')
    if not wanted:
        return ResponseStyle(id_, None, binary)
    # Per output: whether it is binary, and its number of classes; other parameters are the model's.
    outputs: dict[str, bool | None] = {}
    classes: dict[str, int] = {}
    for output in wanted:
        if type(output) is not dict:
            raise InvalidRequest(f"each of the outputs must be an object with a name, not {shown(output)}")
        name, parameters = output.get("name"), output.get("parameters")
        if type(name) is not str or name not in signature.outputs:
            raise InvalidRequest(
                f"unknown output {shown(name)}; the model has {', '.join(map(repr, signature.outputs))}"
            )
        if parameters is not None and type(parameters) is not dict:
            raise InvalidRequest(f"output {name!r}: parameters must be an object")
        if name in outputs:
            raise InvalidRequest(f"output {name!r} is requested twice")
        extra = dict(parameters or {})
        outputs[name] = _flag("binary_data", extra.pop("binary_data", None))
        if PARAMETER in extra:
            classes[name] = class_count(signature.outputs[name], extra.pop(PARAMETER))
        if extra:
            extras.setdefault("outputs", {})[name] = extra
    return ResponseStyle(id_, outputs, binary, classes or None)
