"""Requests of the Open Inference Protocol, tensors in binary."""

from collections.abc import Mapping
from urllib.parse import quote

import orjson

from shoal.wire.datatypes import encode
from shoal.wire.messages import Request
from shoal.wire.signature import Signature
from shoal_schema import headers as names
from shoal_schema.wire.datatypes import Array

HEADER_LENGTH = names.HEADER_LENGTH


def model_path(model: str) -> str:
    """Return the V2 path of a model; its name is quoted."""
    return f"/v2/models/{quote(model, safe='')}"


def infer_request(
    model: str, signature: Signature, tensors: Mapping[str, Array], headers: Mapping[str, str]
) -> Request:
    """Return the call that sends ``tensors``: a JSON header, then each tensor's bytes in order."""
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
        f"{model_path(model)}/infer",
        headers={
            **headers,
            "content-type": "application/octet-stream",
            HEADER_LENGTH: str(len(header)),
        },
        body=b"".join((header, *payloads.values())),
    )
