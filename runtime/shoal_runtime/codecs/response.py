"""Encoder of infer responses and of errors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from shoal_runtime.codecs.json_data import array_to_json
from shoal_runtime.codecs.request import InferRequest
from shoal_runtime.errors import BadRequest
from shoal_runtime.faults import message_text
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.elements import pack_elements


def encode_response(
    request: InferRequest, model: Mapping[str, str], outputs: Mapping[str, Array], parameters: Mapping[str, Any]
) -> tuple[int | None, bytes]:
    """Encode the response to an infer request, with the requested outputs.

    Returns:
        The length of the JSON part if raw tensors follow it, else None; and the body.

    Raises:
        BadRequest: an output cannot be written as JSON.
    """
    entries: list[dict[str, Any]] = []
    tails: list[bytes | memoryview] = []
    # There are no outputs when every row failed.
    for wanted in request.outputs if outputs else ():
        spec, array = wanted.spec, outputs[wanted.spec.name]
        entry: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": list(array.shape)}
        entries.append(entry)
        if not wanted.binary:
            try:
                entry["data"] = array_to_json(array)
            except ValueError as error:
                raise BadRequest(f"output {spec.name} {error}") from None
        elif spec.datatype == "BYTES":
            packed = pack_elements(array.reshape(-1))
            entry["parameters"] = {"binary_data_size": len(packed)}
            tails.append(packed)
        else:
            raw = np.ascontiguousarray(array, dtype=DTYPES[spec.datatype])
            entry["parameters"] = {"binary_data_size": raw.nbytes}
            tails.append(raw.data)
    document: dict[str, Any] = {**model, "parameters": parameters, "outputs": entries}
    if request.id is not None:
        document["id"] = request.id
    # Flat arrays are encoded without Python objects.
    header = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    if not tails:
        return None, header
    return len(header), b"".join((header, *tails))


def encode_error(message: str, code: str) -> bytes:
    """Encode the response body of a failed batch."""
    return orjson.dumps({"error": message_text(message), "code": code})
