"""Answers to bytes: infer results, errors, metadata."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from shoal_runtime.codecs.json_data import array_to_json
from shoal_runtime.codecs.request import InferRequest, WantedOutput
from shoal_runtime.errors import BadRequest
from shoal_runtime.faults import message_text
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.elements import pack_elements


def encode_response(
    request: InferRequest, model: Mapping[str, str], outputs: Mapping[str, Array], parameters: Mapping[str, Any]
) -> tuple[int | None, bytes]:
    """Encode one answer, of the outputs that were asked for; there are none when every row failed.

    Returns:
        The length of the JSON part when raw tensors follow it, else None; and the body.

    Raises:
        BadRequest: an output cannot be written as JSON.
    """
    entries: list[dict[str, Any]] = []
    tails: list[bytes | memoryview] = []
    for wanted in request.outputs if outputs else ():
        entry, tail = _entry(wanted, outputs[wanted.spec.name])
        entries.append(entry)
        if tail is not None:
            tails.append(tail)
    document: dict[str, Any] = {**model, "parameters": parameters, "outputs": entries}
    if request.id is not None:
        document["id"] = request.id
    header = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    if not tails:
        return None, header
    return len(header), b"".join((header, *tails))


def encode_error(message: str, code: str) -> bytes:
    """Encode the body of a batch that fails as a whole."""
    return orjson.dumps({"error": message_text(message), "code": code})


def _entry(wanted: WantedOutput, array: Array) -> tuple[dict[str, Any], bytes | memoryview | None]:
    spec = wanted.spec
    entry: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": list(array.shape)}
    if not wanted.binary:
        try:
            return {**entry, "data": array_to_json(array)}, None
        except ValueError as error:
            raise BadRequest(f"output {spec.name} {error}") from None
    if spec.datatype == "BYTES":
        packed = pack_elements(array.reshape(-1))
        entry["parameters"] = {"binary_data_size": len(packed)}
        return entry, packed
    raw = np.ascontiguousarray(array, dtype=DTYPES[spec.datatype])
    entry["parameters"] = {"binary_data_size": raw.nbytes}
    return entry, raw.data
