"""KServe's V1 protocol: ``instances`` (rows) or ``inputs`` (columns) as plain JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from math import prod
from typing import Any

import numpy as np
import orjson

from shoal_proxy.batching.batch import bucket_for, fill_value
from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import (
    DecodedRequest,
    HttpResponse,
    InferCall,
    check_integers,
    check_rows,
    error_document,
    json_response,
    json_text,
    parse_json,
)
from shoal_proxy.codecs.columns import InputMatch, as_column, listed, match, same_keys, stack, stack_columns
from shoal_proxy.codecs.tensors import check_shape, from_json, text, widen_bf16
from shoal_proxy.codecs.v2 import check_complete
from shoal_proxy.errors import InvalidRequest, PaddingTooLarge, ProxyError
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.base64 import decode_base64
from shoal_schema.wire.columns import NULL
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.elements import bytes_array

MAX_PADDING_BYTES = 64 << 20


class V1Form(StrEnum):
    """The form of a V1 request: rows or columns.

    The value is the name of the results in the response.
    """

    ROWS = "predictions"
    COLUMNS = "outputs"


class V1:
    """Codec of ``POST /v1/models/{m}:predict``."""

    def __init__(self, max_padding_bytes: int = MAX_PADDING_BYTES, *, ignore_extra: bool = False) -> None:
        self._max_padding_bytes = max_padding_bytes
        """Limit on the padding of an input whose rows differ in length."""
        self._ignore_extra = ignore_extra
        """Whether unknown columns are ignored; otherwise they are rejected."""

    def decode(self, call: InferCall, signature: ModelSignature) -> DecodedRequest:
        """Decode JSON rows, or a raw body (an image, a text) as one row."""
        if raw.is_raw(call.media_type):
            return raw.decode(call, signature, V1Form.ROWS)
        document = parse_json(call.body)
        if type(document) is not dict or ("instances" in document) == ("inputs" in document):
            raise InvalidRequest('a V1 request must be an object with either "instances" (rows) or "inputs" (columns)')
        if "instances" in document:
            data = document["instances"]
            return decode_rows(data, signature, call.body, self._max_padding_bytes, ignore_extra=self._ignore_extra)
        data = document["inputs"]
        return _decode_columns(data, signature, call.body, self._max_padding_bytes, ignore_extra=self._ignore_extra)

    def encode(
        self,
        decoded: DecodedRequest,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> HttpResponse:
        """Return results by row or by output, in the same form as the request."""
        if decoded.style is V1Form.ROWS:
            return json_response(200, {V1Form.ROWS.value: rows_of(outputs, lengths, signature)})
        columns = {name: _column(name, array, signature) for name, array in outputs.items()}
        return json_response(
            200, {V1Form.COLUMNS.value: columns if len(columns) != 1 else next(iter(columns.values()))}
        )

    def error(self, error: ProxyError) -> HttpResponse:
        """Return the response ``{"error": ...}``."""
        return json_response(error.status, error_document(error))


def decode_rows(
    instances: Any,
    signature: ModelSignature,
    body: bytes | memoryview,
    max_padding_bytes: int = MAX_PADDING_BYTES,
    *,
    ignore_extra: bool = False,
) -> DecodedRequest:
    """Decode ``instances``, one JSON value per row; ``body`` is their JSON text.

    Values in an object are matched with inputs by name. ``ignore_extra``: whether unknown names are ignored.

    Raises:
        InvalidRequest: ``instances`` do not match the signature.
        PaddingTooLarge: padding the rows to equal length would take more than ``max_padding_bytes``.
    """
    if type(instances) is not list or not instances:
        raise InvalidRequest('"instances" must be a list of at least one row')
    required = [spec for spec in signature.inputs.values() if not spec.optional]
    first = instances[0]
    if len(required) == 1:
        only = required[0]
        # The rows of a model with one input are bare values, or objects with its name. An object without it is a
        # value for an input of JSON; so is {"b64": ...} for any BYTES input.
        is_value = only.holds_json or (only.datatype == "BYTES" and type(first) is dict and first.keys() == {"b64"})
        if type(first) is not dict or (only.name not in first and is_value):
            return decode_values(only, instances, signature, body, max_padding_bytes)
    rows = same_keys(instances, signature)
    names = {name: name for name in rows[0]}
    matches = match(names, rows[0], signature, ignore_extra=ignore_extra)
    return decode_matches(matches, rows, signature, body, max_padding_bytes)


def decode_values(
    spec: InputSpec, values: list[Any], signature: ModelSignature, body: bytes | memoryview, max_padding_bytes: int
) -> DecodedRequest:
    """Decode the ``values`` of one input, one per row."""
    return decode_matches([InputMatch(spec)], values, signature, body, max_padding_bytes)


def decode_matches(
    matches: Sequence[InputMatch],
    rows: list[Any],
    signature: ModelSignature,
    body: bytes | memoryview,
    max_padding_bytes: int,
) -> DecodedRequest:
    """Decode ``rows``, reading each input under the keys of its match.

    Raises:
        InvalidRequest: ``rows`` do not match the signature.
        PaddingTooLarge: padding the rows to equal length would take more than ``max_padding_bytes``.
    """
    check_rows(len(rows))
    if not signature.batches and len(rows) > 1:
        raise InvalidRequest(f"this model does not batch: a request must have one instance, not {len(rows)}")
    inputs: dict[str, Array] = {}
    lengths: dict[str, Sequence[int]] = {}
    for each in matches:
        # Without a batch dimension one is added here, and removed below.
        spec = each.spec if signature.batches else replace(each.spec, shape=(-1, *each.spec.shape))
        if spec.holds_json:
            check_integers(body)
        if each.columns:
            array = stack(spec, rows, each.columns, flags=each.flags)
        elif each.key is not None:
            key = each.key
            values = [row[key] for row in rows]
            array = as_column(spec, _stack(spec, values, lengths, max_padding_bytes, flags=each.flags))
        else:
            array = _stack(spec, rows, lengths, max_padding_bytes)
        inputs[spec.name] = array if signature.batches else array.reshape(array.shape[1:])
    check_complete(inputs, signature)
    for name, array in inputs.items():
        check_shape(signature.inputs[name], array.shape)
    return DecodedRequest(inputs, len(rows), V1Form.ROWS, lengths=lengths)


def _stack(
    spec: InputSpec,
    values: list[Any],
    lengths: dict[str, Sequence[int]],
    max_padding_bytes: int,
    *,
    flags: bool = False,
) -> Array:
    """Return the values of one input as an array, padded if the input allows it."""
    if spec.pad_axis is None:
        return _elements(spec, values) if spec.datatype == "BYTES" else from_json(spec, values, flags=flags)
    rows = [from_json(spec, value) for value in values]
    axis = spec.pad_axis - 1
    if any(row.ndim != len(spec.shape) - 1 for row in rows):
        raise InvalidRequest(f"input {spec.name!r}: each row must have {len(spec.shape) - 1} dimensions")
    own = [row.shape[axis] for row in rows]
    lengths[spec.name] = own
    longest = max(own)
    bucket_for(longest, spec)
    # One long row among many short ones may need far more padding than the request has data.
    per_position_bytes = prod(rows[own.index(longest)].shape) // max(longest, 1) * DTYPES[spec.datatype].itemsize
    padding_bytes = (longest * len(rows) - sum(own)) * per_position_bytes
    if padding_bytes > max_padding_bytes:
        raise PaddingTooLarge(
            f"input {spec.name!r}: padding {len(rows)} rows to the longest, {longest}, would add {padding_bytes} bytes;"
            f" at most {max_padding_bytes} are allowed. Send rows of different lengths in separate requests"
        )
    shape = list(rows[0].shape)
    shape[axis] = longest
    stacked = np.full((len(rows), *shape), fill_value(spec), dtype=DTYPES[spec.datatype])
    for number, row in enumerate(rows):
        index = [slice(None)] * row.ndim
        index[axis] = slice(0, row.shape[axis])
        if stacked[number][tuple(index)].shape != row.shape:
            raise InvalidRequest(
                f"input {spec.name!r}: row {number} has shape {list(row.shape)}, row 0 {list(rows[0].shape)}"
            )
        stacked[number][tuple(index)] = row
    return stacked


def _elements(spec: InputSpec, values: list[Any]) -> Array:
    """Return an array of a BYTES input: strings, bytes, ``{"b64": ...}``, or JSON."""
    if spec.holds_json:
        return bytes_array([json_text(value) for value in values], (len(values),) + (1,) * (len(spec.shape) - 1))
    if any(type(value) in (bytes, dict) for value in values):
        data: list[bytes] = []
        for value in values:
            if type(value) is bytes:  # a part of a form
                data.append(value)
            elif type(value) is str:
                data.append(value.encode())
            elif value is None and spec.nullable:
                data.append(NULL)
            else:
                encoded = value.get("b64") if type(value) is dict and len(value) == 1 else None
                if type(encoded) is not str:
                    raise InvalidRequest(f'input {spec.name!r} accepts only strings or {{"b64": "..."}}')
                try:
                    data.append(decode_base64(encoded))
                except ValueError as error:
                    raise InvalidRequest(f"input {spec.name!r}: b64 is not valid base64: {error}") from None
        return bytes_array(data, (len(values),) + (1,) * (len(spec.shape) - 1))
    array = from_json(spec, values)
    # Rows of one text may have further dimensions of 1.
    ones = len(spec.shape) - array.ndim
    return array.reshape(array.shape + (1,) * ones) if ones > 0 else array


def _decode_columns(
    columns: Any,
    signature: ModelSignature,
    body: bytes | memoryview,
    max_padding_bytes: int,
    *,
    ignore_extra: bool = False,
) -> DecodedRequest:
    named = type(columns) is dict
    if not named:
        required = [name for name, spec in signature.inputs.items() if not spec.optional]
        if len(required) != 1:
            expected = listed(list(signature.columns or signature.inputs))
            raise InvalidRequest(f'"inputs" must be an object with {expected}')
        # A bare list of rows belongs to the only required input.
        columns = {required[0]: columns}
    if not signature.batches:
        # Without a batch dimension the object of inputs is the only row.
        decoded = decode_rows([columns], signature, body, max_padding_bytes, ignore_extra=ignore_extra)
        decoded.style = V1Form.COLUMNS
        return decoded
    names = {name: name for name in columns}
    # The first row decides whether a name stands for an input or a column.
    first = {name: data[0] if type(data) is list and data else None for name, data in columns.items()}
    inputs: dict[str, Array] = {}
    lengths: dict[str, Sequence[int]] = {}
    for each in match(names, first, signature, ignore_extra=ignore_extra):
        spec, values = each.spec, [columns[key] for key in each.keys]
        for key, rows in zip(each.keys, values, strict=True):
            if type(rows) is not list or not rows:
                raise InvalidRequest(f"input {key!r} must be a list of at least one row")
            check_rows(len(rows))
        if spec.holds_json:
            check_integers(body)
        if not each.columns:
            stacked = _stack(spec, values[0], lengths, max_padding_bytes, flags=named and each.flags)
            inputs[spec.name] = as_column(spec, stacked)
        else:
            inputs[spec.name] = stack_columns(spec, values)
        # Checked per input, so that the error names it.
        check_shape(spec, inputs[spec.name].shape)
    check_complete(inputs, signature)
    return DecodedRequest(inputs, next(iter(inputs.values())).shape[0], V1Form.COLUMNS, lengths=lengths)


def rows_of(outputs: Mapping[str, Array], lengths: Mapping[str, Sequence[int]], signature: ModelSignature) -> list[Any]:
    """Return one JSON value per row: of the only output, or an object of outputs."""
    if not signature.batches:
        outputs = {name: array[None] for name, array in outputs.items()}
    columns: dict[str, list[Any]] = {}
    for name, array in outputs.items():
        spec = signature.outputs.get(name)
        own = lengths.get(spec.unpad_input or "") if spec and spec.unpad_axis is not None else None
        if own is None or spec is None or spec.unpad_axis is None:
            columns[name] = list(_column(name, array, signature))
        else:
            # Cut the padding off: each row has the length of its own input.
            before = (slice(None),) * (spec.unpad_axis - 1)
            rows = (row[(*before, slice(0, length))] for row, length in zip(array, own, strict=True))
            columns[name] = [_column(name, row, signature) for row in rows]
    if len(columns) == 1:
        return next(iter(columns.values()))
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _column(name: str, array: Array, signature: ModelSignature) -> Any:
    """Return an output for orjson: contiguous numbers, or nested lists of texts."""
    spec = signature.outputs.get(name)
    if array.dtype.hasobject:
        json_values = spec is not None and spec.content_type == "application/json"
        return _map_nested(array.tolist(), orjson.Fragment if json_values else text)
    if spec is not None and spec.datatype == "BF16":
        array = widen_bf16(array)
    return np.ascontiguousarray(array)


def _map_nested(value: Any, function: Any) -> Any:
    return [_map_nested(item, function) for item in value] if type(value) is list else function(value)
