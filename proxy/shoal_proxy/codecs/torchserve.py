"""TorchServe's inference API: the body of ``POST /predictions/{m}`` is one row, and so is the answer."""

from collections.abc import Mapping, Sequence

from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import Call, Decoded, Reply, json_reply, parse_json
from shoal_proxy.codecs.multipart import first_part
from shoal_proxy.codecs.v1 import decode_rows, rows_of
from shoal_proxy.errors import ProxyError
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.datatypes import Array

_TYPES = {
    400: "BadRequestException",
    404: "ModelNotFoundException",
    405: "MethodNotAllowedException",
    408: "RequestTimeoutException",
    413: "TooLargeFrameException",
    415: "UnsupportedMediaTypeException",
    500: "InternalServerException",
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
        # `curl -T cat.jpg` names no type at all, `curl -d` the same one always; what the model takes decides.
        if media_type in ("", "application/x-www-form-urlencoded"):
            media_type = raw.unnamed_type(signature)
        if raw.is_raw(media_type):
            return raw.one_row(body, media_type, signature, None)
        return decode_rows([parse_json(body)], signature, body)

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
        kind = _TYPES.get(error.status, _TYPES[400] if error.status < 500 else _TYPES[500])
        return json_reply(error.status, {"code": error.status, "type": kind, "message": error.message})
