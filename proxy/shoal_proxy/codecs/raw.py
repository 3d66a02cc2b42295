"""Raw bodies: an image, a text or bytes as one row of the model's ``BYTES`` input."""

from typing import Any

from shoal_proxy.codecs.base import DecodedRequest, InferCall
from shoal_proxy.errors import InvalidRequest, UnsupportedMediaType
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.elements import bytes_array

# `curl -d` sends x-www-form-urlencoded whatever the data is; it is usually JSON.
_JSON_TYPES = frozenset({"", "application/json", "application/x-www-form-urlencoded"})


def is_raw(media_type: str) -> bool:
    """Return whether a body of this media type is one row, not JSON."""
    return media_type not in _JSON_TYPES and not media_type.endswith("+json")


def decode(call: InferCall, signature: ModelSignature, style: Any) -> DecodedRequest:
    """Return the body as a request of one row."""
    return one_row(bytes(call.body), call.media_type, signature, style)


def one_row(body: bytes, media_type: str, signature: ModelSignature, style: Any) -> DecodedRequest:
    """Return ``body`` as one row of the model's BYTES input.

    Raises:
        UnsupportedMediaType: the model does not accept raw bodies of this type.
        InvalidRequest: the body is empty, or is a text and not UTF-8.
    """
    spec = bytes_input(signature)
    if spec is None:
        raise UnsupportedMediaType(
            f"{media_type or 'a raw body'} is not supported: this model has no single BYTES input."
            " Send JSON or V2 tensors"
        )
    check_type(spec, media_type)
    if not body:
        raise InvalidRequest(f"the body is empty; expected one {media_type or 'octet'} row of input {spec.name!r}")
    # Checked here, so that models receive valid texts only.
    if media_type.startswith("text/"):
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the body is not UTF-8 text: {error.reason} at byte {error.start}") from None
    return DecodedRequest({spec.name: bytes_array([body], (1,) * len(spec.shape))}, 1, style)


def check_type(spec: InputSpec, media_type: str) -> None:
    """Check that an input accepts a media type.

    Raises:
        UnsupportedMediaType: the input does not list this type.
    """
    if spec.content_types and not any(accepts(pattern, media_type) for pattern in spec.content_types):
        raise UnsupportedMediaType(f"{media_type} is not supported; expected {' or '.join(spec.content_types)}")


def bytes_input(signature: ModelSignature) -> InputSpec | None:
    """Return the input that accepts a raw body as a row; None if the model has no such input."""
    required = [spec for spec in signature.inputs.values() if not spec.optional]
    if len(required) != 1 or required[0].datatype != "BYTES":
        return None
    sizes = required[0].shape[1:] if signature.batches else required[0].shape
    return required[0] if all(size in (-1, 1) for size in sizes) else None


def unnamed_type(signature: ModelSignature) -> str:
    """Return the media type assumed for a body without a content type."""
    spec = bytes_input(signature)
    if spec is None or spec.holds_json:
        return "application/json"
    taken = spec.content_types
    return "text/plain" if taken and all(kind.startswith("text/") for kind in taken) else "application/octet-stream"


def accepts(pattern: str, media_type: str) -> bool:
    """Return whether a declared content type accepts bodies of ``media_type``."""
    if media_type == "application/octet-stream" and not pattern.startswith(("text/", "application/json")):
        return True
    return pattern in ("*/*", media_type) or (pattern.endswith("/*") and media_type.startswith(pattern[:-1]))
