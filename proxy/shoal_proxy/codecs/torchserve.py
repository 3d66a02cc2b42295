"""TorchServe's inference API: the body of ``POST /predictions/{m}`` is one row, and so is the answer."""

from collections.abc import Mapping, Sequence

from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import Call, Decoded, Reply, json_reply, parse_json
from shoal_proxy.codecs.v1 import decode_rows, rows_of
from shoal_proxy.errors import InvalidRequest, ProxyError, RowsFailed
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.carried import decode_head, encode_headers
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.elements import bytes_array
from shoal_schema.wire.multipart import form_parts

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

    def __init__(self, *, ignore_extra: bool = False) -> None:
        self._ignore_extra = ignore_extra

    def decode(self, call: Call, signature: ModelSignature) -> Decoded:
        """Return the body's one row: JSON, raw, or the first part of a form (``curl -F data=@cat.jpg``).

        A model that is given the headers beside it makes of both what it likes.
        """
        body, media_type = bytes(call.body), call.media_type
        if signature.request_headers:
            return _as_it_came(body, call, signature)
        if media_type == "multipart/form-data":
            body, media_type = _first_part(body, call.headers[b"content-type"])
        # `curl -T cat.jpg` names no type at all, `curl -d` the same one always; what the model takes decides.
        if media_type in ("", "application/x-www-form-urlencoded"):
            media_type = raw.unnamed_type(signature)
        if raw.is_raw(media_type):
            return raw.one_row(body, media_type, signature, None)
        return decode_rows([parse_json(body)], signature, body, ignore_extra=self._ignore_extra)

    def encode(
        self,
        decoded: Decoded,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> Reply:
        """Return the one row's value, under the head that the model gives it, if it does."""
        if signature.response_head and signature.response_head in outputs:
            return _as_the_model_says(outputs, signature)
        return json_reply(200, rows_of(outputs, lengths, signature)[0])

    def error(self, error: ProxyError) -> Reply:
        """Return TorchServe's error object; of the request's one row the message alone."""
        message = error.errors[0].message if isinstance(error, RowsFailed) else error.message
        kind = _TYPES.get(error.status, _TYPES[400] if error.status < 500 else _TYPES[500])
        return json_reply(error.status, {"code": error.status, "type": kind, "message": message})


def _first_part(body: bytes, content_type: bytes) -> tuple[bytes, str]:
    try:
        first = form_parts(body, content_type)[0]
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    return first.data, first.media_type


def _as_it_came(body: bytes, call: Call, signature: ModelSignature) -> Decoded:
    spec = raw.bytes_input(signature)
    if spec is None:
        raise InvalidRequest("this model takes no body as it comes: send V2 tensors")
    headers = encode_headers(call.headers)
    inputs = {
        spec.name: bytes_array([body], (1,) * len(spec.shape)),
        signature.request_headers: bytes_array([headers], (1,)),
    }
    return Decoded(inputs, 1)


def _as_the_model_says(outputs: Mapping[str, Array], signature: ModelSignature) -> Reply:
    head = decode_head(outputs[signature.response_head].item(0))
    body = next(array for name, array in outputs.items() if name != signature.response_head).item(0)
    lines = [f"{name}: {value}\r\n" for name, value in head.headers.items() if name != "content-type"]
    content_type = head.headers.get("content-type", "application/octet-stream").encode("latin-1")
    return Reply(head.status, (body,), content_type, "".join(lines).encode("latin-1"))
