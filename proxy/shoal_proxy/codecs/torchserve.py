"""TorchServe's inference API: the body of ``POST /predictions/{m}`` is one row, and so is the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import Call, Decoded, Reply, json_reply, parse_json
from shoal_proxy.codecs.multipart import first_part
from shoal_proxy.codecs.v1 import decode_rows, rows_of
from shoal_proxy.errors import ProxyError
from shoal_proxy.model.datatypes import Array
from shoal_proxy.model.signature import ModelSignature

_TYPES = {
    400: "BadRequestException",
    404: "ModelNotFoundException",
    405: "MethodNotAllowedException",
    413: "TooLargeFrameException",
    503: "ServiceUnavailableException",
    504: "RequestTimeoutException",
}


class TorchServe:
    """Decode and encode ``POST /predictions/{m}``."""

    name = "torchserve"

    def decode(self, call: Call, signature: ModelSignature) -> Decoded:
        """Return the body's one row: JSON, raw, or the first part of a form (``curl -F data=@cat.jpg``)."""
        body, media_type = bytes(call.body), call.media_type
        if media_type == "multipart/form-data":
            body, media_type = first_part(body, call.headers[b"content-type"])
        # `curl -T cat.jpg` names no type at all; what the model takes decides.
        unnamed = media_type in ("", "application/x-www-form-urlencoded")
        if raw.is_raw(media_type) or (unnamed and _takes_bytes(signature)):
            return raw.one_row(body, "application/octet-stream" if unnamed else media_type, signature, None)
        return decode_rows([parse_json(body)], signature)

    def encode(
        self,
        decoded: Decoded,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> Reply:
        """Return the one row's value."""
        return json_reply(200, rows_of(outputs, lengths, signature)[0])

    def error(self, error: ProxyError) -> Reply:
        """Return TorchServe's error object."""
        kind = _TYPES.get(error.status, "InternalServerException" if error.status == 500 else "")
        document = {
            "code": error.status,
            "type": kind or HTTPStatus(error.status).phrase,
            "message": error.message,
        }
        return json_reply(error.status, document)


def _takes_bytes(signature: ModelSignature) -> bool:
    required = [spec for spec in signature.inputs.values() if not spec.optional]
    return len(required) == 1 and required[0].datatype == "BYTES" and not required[0].holds_json
