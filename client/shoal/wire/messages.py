"""HTTP requests and responses as values, and the V2 inference request with binary tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

import orjson

from shoal.wire.datatypes import encode
from shoal.wire.signature import Signature
from shoal_schema.interfaces import headers as names
from shoal_schema.wire.datatypes import Array

HEADER_LENGTH = names.HEADER_LENGTH


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send; the path starts with a slash and is relative to the server's base URL."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def model_path(model: str) -> str:
    """Return the V2 path of a model, with its name percent-encoded."""
    return f"/v2/models/{quote(model, safe='')}"


def result_path(model: str, job_id: str) -> str:
    """Return the path of the result of an asynchronous request."""
    return f"{model_path(model)}/results/{quote(job_id, safe='')}"


def infer_request(
    model: str, signature: Signature, tensors: Mapping[str, Array], headers: Mapping[str, str], *, later: bool = False
) -> Request:
    """Return the inference request for ``tensors``: a JSON header, then the bytes of each tensor in order.

    Args:
        model: the model's name.
        signature: the model's signature.
        tensors: arrays by input name.
        headers: further headers.
        later: whether the request is asynchronous. Unlike the header ``Prefer``, the query is rejected by a service
            that does not support it.
    """
    datatypes = {tensor.name: tensor.datatype for tensor in signature.inputs}
    payloads = {name: encode(array, datatypes[name]) for name, array in tensors.items()}
    header = orjson.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "shape": list(array.shape),
                    "datatype": datatypes[name],
                    "parameters": {"binary_data_size": len(payloads[name])},
                }
                for name, array in tensors.items()
            ],
            "parameters": {"binary_data_output": True},
        }
    )
    return Request(
        "POST",
        f"{model_path(model)}/infer{'?async=true' if later else ''}",
        # HEADER_LENGTH separates the JSON from the tensors (V2 binary extension).
        headers={**headers, "content-type": "application/octet-stream", HEADER_LENGTH: str(len(header))},
        body=b"".join((header, *payloads.values())),
    )
