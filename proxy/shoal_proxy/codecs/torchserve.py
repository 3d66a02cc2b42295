"""TorchServe's inference API, ``POST /predictions/{m}``, one row per request."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import DecodedRequest, HttpResponse, InferCall, json_response, parse_json, shown
from shoal_proxy.codecs.v1 import decode_rows, rows_of
from shoal_proxy.errors import InvalidRequest, ProxyError, RowsFailed
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.carried_headers import decode_head, encode_headers
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.elements import bytes_array
from shoal_schema.wire.multipart import FormPart, form_parts

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
    """Codec of ``POST /predictions/{m}``."""

    def __init__(self, *, ignore_extra: bool = False) -> None:
        self._ignore_extra = ignore_extra

    def decode(self, call: InferCall, signature: ModelSignature) -> DecodedRequest:
        """Decode a body of one row: JSON, raw, or a form (``curl -F data=@cat.jpg``).

        The parts of a form are inputs by name; a single part is the single input, regardless of its name. A model with
        an input for headers gets body and headers undecoded.
        """
        body, media_type = bytes(call.body), call.media_type
        if signature.request_headers:
            spec = raw.bytes_input(signature)
            if spec is None:
                raise InvalidRequest("this model does not accept undecoded bodies. Send V2 tensors")
            headers = encode_headers(call.headers)
            inputs = {
                spec.name: bytes_array([body], (1,) * len(spec.shape)),
                signature.request_headers: bytes_array([headers], (1,)),
            }
            return DecodedRequest(inputs, 1)
        if media_type == "multipart/form-data":
            try:
                parts = form_parts(body, call.headers[b"content-type"])
            except ValueError as error:
                raise InvalidRequest(str(error)) from None
            # With one part and one required input, the part's name does not matter.
            if len(parts) > 1 or sum(not spec.optional for spec in signature.inputs.values()) > 1:
                return _by_name(parts, signature, ignore_extra=self._ignore_extra)
            body, media_type = parts[0].data, parts[0].media_type
        # `curl -T cat.jpg` sends no media type, `curl -d` always the same: the model's input decides.
        if media_type in ("", "application/x-www-form-urlencoded"):
            media_type = raw.unnamed_type(signature)
        if raw.is_raw(media_type):
            return raw.one_row(body, media_type, signature, None)
        return decode_rows([parse_json(body)], signature, body, ignore_extra=self._ignore_extra)

    def encode(
        self,
        decoded: DecodedRequest,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> HttpResponse:
        """Return the row's result, with status and headers if the model sets them."""
        if not signature.response_head or signature.response_head not in outputs:
            return json_response(200, rows_of(outputs, lengths, signature)[0])
        head = decode_head(outputs[signature.response_head].item(0))
        body = next(array for name, array in outputs.items() if name != signature.response_head).item(0)
        lines = [f"{name}: {value}\r\n" for name, value in head.headers.items() if name != "content-type"]
        content_type = head.headers.get("content-type", "application/octet-stream").encode("latin-1")
        return HttpResponse(head.status, (body,), content_type, "".join(lines).encode("latin-1"))

    def error(self, error: ProxyError) -> HttpResponse:
        """Return TorchServe's error object; for a failed row only the row's message."""
        message = error.errors[0].message if isinstance(error, RowsFailed) else error.message
        kind = _TYPES.get(error.status, _TYPES[400] if error.status < 500 else _TYPES[500])
        return json_response(error.status, {"code": error.status, "type": kind, "message": message})


def _by_name(parts: list[FormPart], signature: ModelSignature, *, ignore_extra: bool) -> DecodedRequest:
    """Decode a form as one row: JSON parts, and raw parts of BYTES inputs.

    Raises:
        InvalidRequest: a name occurs twice or is unknown, or an input is missing.
        UnsupportedMediaType: an input does not accept the media type of its part.
    """
    row: dict[str, Any] = {}
    for part in parts:
        if part.name in row:
            raise InvalidRequest(f"the form has two parts named {shown(part.name)}")
        spec = signature.inputs.get(part.name)
        if spec is not None and (spec.datatype != "BYTES" or spec.holds_json):
            row[part.name] = parse_json(part.data)
        elif spec is not None:
            if part.media_type:
                raw.check_type(spec, part.media_type)
            row[part.name] = part.data
        elif not ignore_extra:
            inputs = ", ".join(map(shown, signature.inputs))
            raise InvalidRequest(f"the form's part {shown(part.name)} is not an input of the model, which has {inputs}")
    if not row:
        inputs = ", ".join(map(shown, signature.inputs))
        raise InvalidRequest(f"no part of the form is an input of the model, which has {inputs}")
    # The JSON of all parts, in which integers beyond 64 bits are rejected.
    texts = b",".join([part.data for part in parts if type(row.get(part.name)) is not bytes])
    return decode_rows([row], signature, texts)
