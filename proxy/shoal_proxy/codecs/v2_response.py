"""V2 responses: the requested outputs, each as JSON or binary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from shoal_proxy.codecs.base import OCTETS, HttpResponse, json_response
from shoal_proxy.codecs.classification import classified
from shoal_proxy.codecs.tensors import tensor_entry, text
from shoal_proxy.errors import ModelFailed
from shoal_proxy.model.signature import ModelSignature, OutputSpec
from shoal_schema.interfaces import headers
from shoal_schema.wire.datatypes import DATATYPES, DTYPES, Array

HEADER_LENGTH = headers.HEADER_LENGTH.encode()


@dataclass(frozen=True)
class ResponseStyle:
    """The requested form of a V2 response."""

    id: str | None = None
    """The client's id of the request."""
    outputs: Mapping[str, bool | None] | None = None
    """The requested outputs, and whether each is binary (None: as ``binary``); None: all outputs."""
    binary: bool = False
    """Whether outputs are binary by default."""
    classes: Mapping[str, int] | None = None
    """By output, the number of largest elements to return instead of the output."""


PLAIN = ResponseStyle()
ALL_BINARY = ResponseStyle(binary=True)


def encode_response(style: ResponseStyle, outputs: Mapping[str, Array], signature: ModelSignature) -> HttpResponse:
    """Return the response with the ``outputs`` that ``style`` requests."""
    tail: list[bytes | memoryview] = []
    tensors = [
        tensor_entry(output_spec(name, array, signature), array, tail if binary else None, words=text)
        for name, array, binary in select_outputs(style, outputs, signature)
    ]
    document = response_document(signature, tensors, style.id)
    if not tail:
        return json_response(200, document)
    header = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return HttpResponse(200, (header, *tail), OCTETS, b"%b: %d\r\n" % (HEADER_LENGTH, len(header)))


def response_document(
    signature: ModelSignature, tensors: Sequence[Mapping[str, Any]], id_: str | None
) -> dict[str, Any]:
    """Return the JSON document of a response; ``tensors`` are its last member."""
    named = {} if id_ is None else {"id": id_}
    version = (signature.versions or ("1",))[-1]
    return {"model_name": signature.name, "model_version": version, **named, "outputs": tensors}


def output_spec(name: str, array: Array, signature: ModelSignature) -> OutputSpec:
    """Return the output's declaration, or a new one if ``array`` differs from it."""
    declared = signature.outputs.get(name)
    if declared is not None and DTYPES[declared.datatype] == array.dtype:
        return declared
    return OutputSpec(name, DATATYPES[array.dtype], (-1,))


def select_outputs(
    style: ResponseStyle, outputs: Mapping[str, Array], signature: ModelSignature
) -> list[tuple[str, Array, bool]]:
    """Return the outputs to send, in the requested order, and whether each is binary."""
    if style.outputs is None:
        return [(name, array, style.binary) for name, array in outputs.items()]
    missing = style.outputs.keys() - outputs.keys()
    if missing:
        raise ModelFailed(f"the outputs {sorted(missing)} are missing in the runtime's response")
    if style.classes:
        specs, batches = signature.outputs, signature.batches
        classes = {
            name: classified(specs.get(name), outputs[name], count, batches=batches)
            for name, count in style.classes.items()
        }
        outputs = {**outputs, **classes}
    return [(name, outputs[name], style.binary if binary is None else binary) for name, binary in style.outputs.items()]
