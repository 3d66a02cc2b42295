"""Decoder of infer request bodies to arrays, checked against the model's signature.

body = JSON                     without Inference-Header-Content-Length
body = JSON, then raw tensors   the header holds the length of the JSON part in bytes
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from shoal_runtime.codecs.json_data import array_from_json
from shoal_runtime.errors import BadRequest, TooManyRows
from shoal_runtime.signature.spec import TensorSpec, fits
from shoal_runtime.signature.tensors import Signature
from shoal_schema.wire.datatypes import DTYPES, Array, is_widened
from shoal_schema.wire.elements import object_array, unpack_elements


class RequestedOutput:
    """An output that a request asks for, and its encoding."""

    __slots__ = ("binary", "spec")

    def __init__(self, spec: TensorSpec, binary: bool) -> None:  # noqa: FBT001 (positional on the hot path)
        if spec.datatype == "BF16" and not binary:
            raise BadRequest(f"output {spec.name} is BF16, which JSON cannot hold. Request it with binary_data")
        self.spec = spec
        self.binary = binary


class InferRequest:
    """A decoded infer request: the inputs of one batch, and the requested outputs.

    Arrays share the memory of the body. `BYTES` arrays hold `bytes`. The response repeats `id`.
    """

    __slots__ = ("id", "inputs", "outputs", "parameters", "rows")

    def __init__(
        self,
        id_: str | None,
        parameters: Mapping[str, Any],
        inputs: Mapping[str, Array],
        rows: int,
        outputs: Sequence[RequestedOutput],
    ) -> None:
        self.id = id_
        self.parameters = parameters
        self.inputs = inputs
        self.rows = rows
        self.outputs = outputs


def decode_request(body: memoryview, json_bytes: int, signature: Signature) -> InferRequest:
    """Decode the body of an infer request, and check it against the signature.

    Args:
        body: JSON, then raw tensors; arrays share its memory.
        json_bytes: length of the JSON part.
        signature: the model's signature.

    Raises:
        BadRequest: the body violates the protocol or the signature.
        TooManyRows: the batch has more rows than `max_batch_size`.
    """
    if not 0 <= json_bytes <= len(body):
        raise BadRequest(f"Inference-Header-Content-Length is {json_bytes}; the body has {len(body)} bytes")
    try:
        document = orjson.loads(body[:json_bytes])
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body must be a JSON object")
    parameters = _mapping(document.get("parameters"), "parameters")
    inputs = _inputs(document, body[json_bytes:], signature)
    # All inputs hold the same number of rows, each along its own batch dimension.
    counts = {s.name: inputs[s.name].shape[s.batch_dim] for s in signature.inputs if s.name in inputs}
    rows: int = max(counts.values())
    if min(counts.values()) != rows:
        raise BadRequest(f"the inputs hold different numbers of rows: {counts}")
    if rows == 0:
        raise BadRequest("the inputs hold no rows")
    if rows > signature.max_batch_size:
        raise TooManyRows(f"the batch has {rows} rows; the model accepts up to {signature.max_batch_size}")
    outputs = _outputs(document, parameters, signature)
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise BadRequest("`id` must be a string")
    return InferRequest(request_id, parameters, inputs, rows, outputs)


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"`{what}` must be a JSON object")
    return value


def _inputs(document: dict[str, Any], raw: memoryview, signature: Signature) -> dict[str, Array]:
    entries = document.get("inputs")
    if not isinstance(entries, list) or not entries:
        raise BadRequest("`inputs` must be a list of tensors")
    inputs: dict[str, Array] = {}
    position = 0  # bytes of raw tensors that earlier inputs occupy
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise BadRequest("each input must be an object with a `name`")
        spec = signature.input(entry["name"])
        if spec is None:
            names = ", ".join(s.name for s in signature.inputs)
            raise BadRequest(f"the model has no input {entry['name']}; its inputs are {names}")
        datatype = entry.get("datatype")
        if datatype != spec.datatype and not is_widened(datatype, spec.datatype):
            raise BadRequest(f"input {spec.name} is {spec.datatype}, not {datatype}")
        if spec.name in inputs:
            raise BadRequest(f"input {spec.name} is given twice")
        inputs[spec.name], position = _tensor(entry, spec, raw, position)
    if position != len(raw):
        raise BadRequest(f"{len(raw) - position} bytes follow the last tensor")
    for spec in signature.inputs:
        if spec.name not in inputs and not spec.optional:
            raise BadRequest(f"input {spec.name} is missing")
    return inputs


def _tensor(entry: dict[str, Any], spec: TensorSpec, raw: memoryview, position: int) -> tuple[Array, int]:
    shape = entry.get("shape")
    if not isinstance(shape, list):
        raise BadRequest(f"input {spec.name} needs a `shape` of whole numbers, not {shape!r}")
    for each in shape:
        if type(each) is not int or each < 0:
            raise BadRequest(f"input {spec.name} needs a `shape` of whole numbers, not {shape!r}")
    if not fits(shape, spec.shape):
        raise BadRequest(f"input {spec.name} has shape {shape}; the model expects {list(spec.shape)}")
    dims = tuple(shape)
    # Binary data follows the JSON in the order of the inputs.
    size = _mapping(entry.get("parameters"), "parameters").get("binary_data_size")
    try:
        if size is None:
            return array_from_json(entry.get("data"), spec.datatype, dims), position
        if type(size) is not int or size < 0:
            raise ValueError(f"has binary_data_size {size!r}, which must be a whole number of bytes")
        if "data" in entry:
            raise ValueError("has both `data` and binary_data_size")
        end = position + size
        if end > len(raw):
            raise ValueError(f"has binary_data_size {size}; {len(raw) - position} bytes are left in the body")
        array = _array_from_bytes(raw[position:end], entry["datatype"], dims)
        return array if entry["datatype"] == spec.datatype else array.astype(DTYPES[spec.datatype]), end
    except ValueError as error:
        raise BadRequest(f"input {spec.name} {error}") from None


def _array_from_bytes(raw: memoryview, datatype: str, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape)
    if datatype == "BYTES":
        elements = unpack_elements(raw)
        if len(elements) != count:
            raise ValueError(f"holds {len(elements)} elements; shape {list(shape)} needs {count}")
        return object_array(elements, shape)
    dtype = DTYPES[datatype]
    if len(raw) != count * dtype.itemsize:
        needed = count * dtype.itemsize
        raise ValueError(f"holds {len(raw)} bytes; {datatype} of shape {list(shape)} needs {needed}")
    if datatype == "BOOL" and count and np.frombuffer(raw, dtype=np.uint8).max() > 1:
        raise ValueError("is BOOL and holds bytes other than 0 and 1")
    # Behind a tensor of odd length an array is unaligned, which torch's kernels do not support.
    array = np.frombuffer(raw, dtype=dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()


def _outputs(document: dict[str, Any], parameters: Mapping[str, Any], signature: Signature) -> list[RequestedOutput]:
    binary = parameters.get("binary_data_output", False) is True
    entries = document.get("outputs")
    if not entries:
        return [RequestedOutput(spec, binary) for spec in signature.outputs]
    if not isinstance(entries, list):
        raise BadRequest("`outputs` must be a list")
    specs = {spec.name: spec for spec in signature.outputs}
    wanted = []
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in specs:
            raise BadRequest(f"the model has no output {name}; its outputs are {', '.join(specs)}")
        # A value of the output overrides that of the request.
        own = _mapping(entry.get("parameters"), "parameters").get("binary_data", binary)
        wanted.append(RequestedOutput(specs[name], own is True))
    return wanted
