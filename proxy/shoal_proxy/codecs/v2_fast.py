"""The fast path for the common V2 requests and answers of one model; `v2` takes all others part by part.

Clients send the same request over and over with other numbers in it. JSON whose only tensor is one row of a fixed shape
needs no more than a look at its name, type and shape. The JSON part in front of binary tensors is the same each time,
byte for byte, so what it says is kept; and so is the JSON around the numbers of an answer.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import orjson

from shoal_proxy.codecs.base import OCTETS, Decoded, Reply
from shoal_proxy.codecs.tensors import ALLOWED, CODES, are_sizes, from_binary, to_binary, to_canonical
from shoal_proxy.codecs.v2_answer import ALL_BINARY, HEADER_LENGTH, PLAIN, Style, answer_document, output_spec
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.datatypes import DTYPES, Array

_MAX_HEADER_BYTES = 2048
_MAX_KEPT = 256
"""Entries of each kind; all are forgotten when there are more."""
_NOT_PLAIN = ("BYTES", "BF16")
"""Datatypes that JSON, or numpy, does not have as numbers."""


class _Layout(NamedTuple):
    """What the JSON part of a binary request says: each tensor with its wire shape and bytes, and all the rest."""

    tensors: Sequence[tuple[InputSpec, list[int], int]]
    size_bytes: int
    rest: Decoded
    """The request as it was decoded, without its inputs."""


class V2Fast:
    """What the common requests for the model with this signature look like."""

    def __init__(self, signature: ModelSignature) -> None:
        self.signature = signature
        self._row = _only_row(signature)
        self._row_size = prod(self._row.one_row or ()) if self._row else 0
        datatype = self._row.datatype if self._row else "FP32"
        self._row_types: frozenset[type] = ALLOWED[datatype][0]
        self._row_pack: Callable[..., bytes] = Struct(f"<{self._row_size}{CODES[datatype]}").pack
        self._layouts: dict[bytes, _Layout] = {}
        self._answers: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}

    def row(self, document: Any) -> Decoded | None:
        """Return a request of one row of numbers in JSON and nothing more; None when ``document`` is any other."""
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
            return None  # `v2` says what is wrong with it
        array: Array = np.frombuffer(packed, DTYPES[spec.datatype])
        return Decoded({spec.name: array.reshape(spec.one_row or ())}, 1, PLAIN)

    def binary(self, header: bytes, tail: memoryview) -> Decoded | None:
        """Return the request whose tensors are ``tail``, laid out as ``header`` says; None if that is not known."""
        layout = self._layouts.get(header) if len(header) <= _MAX_HEADER_BYTES else None
        if layout is None or layout.size_bytes != len(tail):
            return None
        inputs: dict[str, Array] = {}
        offset = 0
        for spec, shape, size in layout.tensors:
            inputs[spec.name] = to_canonical(spec, from_binary(spec, tail[offset : offset + size], shape))
            offset += size
        return layout.rest.with_inputs(inputs)

    def remember(self, header: bytes, tensors: Sequence[Mapping[str, Any]], decoded: Decoded) -> None:
        """Keep what the ``header`` of a binary request says, which has become ``decoded``."""
        sizes: list[Any] = [(tensor.get("parameters") or {}).get("binary_data_size") for tensor in tensors]
        if len(header) > _MAX_HEADER_BYTES or decoded.style.id is not None or None in sizes:
            return
        for tensor in tensors:
            spec = self.signature.inputs.get(tensor["name"])
            if spec is None or tensor["datatype"] != spec.datatype or len(tensor["shape"]) != len(spec.shape):
                return  # a column, or converted: what is sent is not what is kept
        parts = [
            (self.signature.inputs[tensor["name"]], tensor["shape"], size)
            for tensor, size in zip(tensors, sizes, strict=True)
        ]
        _keep(self._layouts, header, _Layout(parts, sum(sizes), decoded.with_inputs({})))

    def answer(self, style: Style, outputs: Mapping[str, Array], signature: ModelSignature) -> Reply | None:
        """Return the answer of one output of numbers, all JSON or all binary; None where it takes more than that."""
        if signature is not self.signature or len(outputs) != 1 or not (style is PLAIN or style is ALL_BINARY):
            return None
        ((name, array),) = outputs.items()
        key = style.binary, name, array.shape, array.dtype.num
        known = self._answers.get(key)
        if known is None:
            known = _around(style, name, array, self.signature)
            if known is None:
                return None
            _keep(self._answers, key, known)
        before, after = known
        if style.binary:
            return Reply(200, (before, to_binary(array)), OCTETS, after)
        return Reply(200, (before, orjson.dumps(array.reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY), after))


def _only_row(signature: ModelSignature) -> InputSpec | None:
    """Return the model's only input, if each of its rows is so many numbers."""
    specs = list(signature.inputs.values())
    if len(specs) != 1 or specs[0].one_row is None or specs[0].datatype in _NOT_PLAIN:
        return None
    return specs[0]


def _around(style: Style, name: str, array: Array, signature: ModelSignature) -> tuple[bytes, bytes] | None:
    """Return what stands before an output's numbers, and after them: JSON, or for a binary one a header line."""
    spec = output_spec(name, array, signature)
    if spec.batch_dim or spec.datatype in _NOT_PLAIN:
        return None
    tensor: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": array.shape}
    if style.binary:
        tensor["parameters"] = {"binary_data_size": array.nbytes}
        header = orjson.dumps(answer_document(signature, [tensor], None))
        return header, b"%b: %d\r\n" % (HEADER_LENGTH, len(header))
    tensor["data"] = []
    end = b"]}]}"
    return orjson.dumps(answer_document(signature, [tensor], None)).removesuffix(b"[" + end), end.removeprefix(b"]")


def _keep(kept: dict[Any, Any], key: object, value: object) -> None:
    if len(kept) >= _MAX_KEPT:
        kept.clear()
    kept[key] = value
