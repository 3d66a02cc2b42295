"""The fast path for the common V2 requests and responses of one model; `v2` handles all others.

Clients send the same request repeatedly with other numbers. For JSON with a single tensor of one row and a fixed shape,
only name, type and shape are checked. The JSON part in front of binary tensors is identical each time, so its decoded
form is cached by its bytes. The JSON around the numbers of a response is cached, too.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import orjson

from shoal_proxy.codecs.base import OCTETS, DecodedRequest, HttpResponse
from shoal_proxy.codecs.tensors import ALLOWED, CODES, are_sizes, from_binary, to_binary, to_canonical
from shoal_proxy.codecs.v2_response import (
    ALL_BINARY,
    HEADER_LENGTH,
    PLAIN,
    ResponseStyle,
    output_spec,
    response_document,
)
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.datatypes import DTYPES, Array

_MAX_HEADER_BYTES = 2048
_MAX_KEPT = 256
"""Most entries in each cache; a full cache is cleared."""
_NOT_PLAIN = ("BYTES", "BF16")
"""Datatypes that are not numbers in JSON or numpy."""


class _Layout(NamedTuple):
    """The decoded JSON part of a binary request."""

    tensors: Sequence[tuple[InputSpec, list[int], int]]
    """Each tensor's declaration, wire shape and size in bytes."""
    size_bytes: int
    """Size of all tensors."""
    rest: DecodedRequest
    """The decoded request without its inputs."""


class V2Fast:
    """Caches for the common requests and responses of one model."""

    def __init__(self, signature: ModelSignature) -> None:
        self.signature = signature
        specs = list(signature.inputs.values())
        plain = len(specs) == 1 and specs[0].one_row is not None and specs[0].datatype not in _NOT_PLAIN
        self._row: InputSpec | None = specs[0] if plain else None
        """The model's only input, if each of its rows is a fixed number of numbers."""
        self._row_size = prod(self._row.one_row or ()) if self._row else 0
        datatype = self._row.datatype if self._row else "FP32"
        self._row_types: frozenset[type] = ALLOWED[datatype][0]
        self._row_pack: Callable[..., bytes] = Struct(f"<{self._row_size}{CODES[datatype]}").pack
        self._layouts: dict[bytes, _Layout] = {}
        self._answers: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}

    def row(self, document: Any) -> DecodedRequest | None:
        """Decode a JSON request of one row of numbers; None for another form."""
        spec = self._row
        if spec is None or type(document) is not dict or len(document) != 1:
            return None
        tensors = document.get("inputs")
        tensor = tensors[0] if type(tensors) is list and len(tensors) == 1 else None
        if type(tensor) is not dict or len(tensor) != 4 or tensor.get("name") != spec.name:
            return None
        data = tensor.get("data")
        if type(data) is not list or len(data) != self._row_size or tensor.get("datatype") != spec.datatype:
            return None
        if not (are_sizes(tensor.get("shape"), spec.one_row or []) and self._row_types.issuperset(map(type, data))):
            return None
        try:
            packed = self._row_pack(*data)
        except (struct.error, OverflowError):
            return None  # `v2` raises the error
        array: Array = np.frombuffer(packed, DTYPES[spec.datatype])
        return DecodedRequest({spec.name: array.reshape(spec.one_row or ())}, 1, PLAIN)

    def binary(self, header: bytes, tail: memoryview) -> DecodedRequest | None:
        """Decode the tensors in ``tail``; None if ``header`` is not cached."""
        layout = self._layouts.get(header) if len(header) <= _MAX_HEADER_BYTES else None
        if layout is None or layout.size_bytes != len(tail):
            return None
        inputs: dict[str, Array] = {}
        offset = 0
        for spec, shape, size in layout.tensors:
            inputs[spec.name] = to_canonical(spec, from_binary(spec, tail[offset : offset + size], shape))
            offset += size
        return layout.rest.with_inputs(inputs)

    def remember(self, header: bytes, tensors: Sequence[Mapping[str, Any]], decoded: DecodedRequest) -> None:
        """Cache the layout of a binary request, decoded from ``header``."""
        sizes: list[Any] = [(tensor.get("parameters") or {}).get("binary_data_size") for tensor in tensors]
        # A header with a request id would not occur again.
        if len(header) > _MAX_HEADER_BYTES or decoded.style.id is not None or None in sizes:
            return
        for tensor in tensors:
            spec = self.signature.inputs.get(tensor["name"])
            if spec is None or tensor["datatype"] != spec.datatype or len(tensor["shape"]) != len(spec.shape):
                return  # a column, or a converted tensor: the decoded array differs from the sent one
        parts = [
            (self.signature.inputs[tensor["name"]], tensor["shape"], size)
            for tensor, size in zip(tensors, sizes, strict=True)
        ]
        _keep(self._layouts, header, _Layout(parts, sum(sizes), decoded.with_inputs({})))

    def encode_response(
        self, style: ResponseStyle, outputs: Mapping[str, Array], signature: ModelSignature
    ) -> HttpResponse | None:
        """Return the response for a single output of numbers; None for other outputs."""
        if signature is not self.signature or len(outputs) != 1 or not (style is PLAIN or style is ALL_BINARY):
            return None
        ((name, array),) = outputs.items()
        # The JSON around the numbers depends on these only.
        key = style.binary, name, array.shape, array.dtype.num
        known = self._answers.get(key)
        if known is None:
            known = _around(style, name, array, self.signature)
            if known is None:
                return None
            _keep(self._answers, key, known)
        before, after = known
        if style.binary:
            return HttpResponse(200, (before, to_binary(array)), OCTETS, after)
        return HttpResponse(200, (before, orjson.dumps(array.reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY), after))


def _around(style: ResponseStyle, name: str, array: Array, signature: ModelSignature) -> tuple[bytes, bytes] | None:
    """Return the parts of a response around an output's numbers.

    For JSON, these are the texts before and after the numbers; for binary, the JSON part and the header line with its
    length. None if the output is not plain numbers.
    """
    spec = output_spec(name, array, signature)
    if spec.batch_dim or spec.datatype in _NOT_PLAIN:
        return None
    tensor: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": array.shape}
    if style.binary:
        tensor["parameters"] = {"binary_data_size": array.nbytes}
        header = orjson.dumps(response_document(signature, [tensor], None))
        return header, b"%b: %d\r\n" % (HEADER_LENGTH, len(header))
    tensor["data"] = []
    # The document ends with the tensor's empty list, "[]}]}"; the numbers are encoded with their own brackets.
    end = b"]}]}"
    return orjson.dumps(response_document(signature, [tensor], None)).removesuffix(b"[" + end), end.removeprefix(b"]")


def _keep(kept: dict[Any, Any], key: object, value: object) -> None:
    if len(kept) >= _MAX_KEPT:
        # Clients with ever-changing headers must not fill the memory.
        kept.clear()
    kept[key] = value
