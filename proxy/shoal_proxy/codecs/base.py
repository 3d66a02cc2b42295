"""Common parts of all codecs: infer call, decoded request, HTTP response."""

from collections.abc import Mapping, Sequence
from reprlib import Repr
from typing import Any, Protocol

import orjson

from shoal_proxy.errors import BodyTooLarge, InvalidRequest, ProxyError
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.interfaces import headers
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import encode_row_errors

JSON = b"application/json"
OCTETS = b"application/octet-stream"
NO_BYTES = b""
EXECUTED = {ran: f"{headers.EXECUTED}: {word}\r\n".encode() for ran, word in ((True, "maybe"), (False, "no"))}
"""The header line of an error: whether the runtime may have executed rows of the request."""

MAX_LISTS = 1 << 20
"""Most lists and objects in one JSON body, estimated; each takes about 100 bytes and 0.5 us."""
MAX_ROWS = 1 << 18
"""Most rows in one request."""
MAX_VALUES = 1 << 23
"""Most values in one JSON body, estimated."""
_LONG = b"0" * 19
"""The fewest digits of an integer beyond 64 bits, each translated to a zero."""
_ZEROS = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))
"""Translates digits to zeros and all else to spaces; ``find`` on the result is faster than a regular expression."""

_SHOWN = Repr()
# Limits of values in messages.
_SHOWN.maxstring = _SHOWN.maxother = 200
_SHOWN.maxlist = _SHOWN.maxdict = 16


class InferCall:
    """One HTTP request to an infer route: lower-case header names, the whole body."""

    __slots__ = ("body", "headers")

    def __init__(self, headers: Mapping[bytes, bytes], body: bytes | memoryview) -> None:
        self.headers = headers
        self.body = body

    @property
    def is_json(self) -> bool:
        """Whether the content type is exactly ``application/json``."""
        return self.headers.get(b"content-type") == JSON

    @property
    def media_type(self) -> str:
        """The content type without parameters, in lower case; empty if there is none."""
        return self.headers.get(b"content-type", NO_BYTES).partition(b";")[0].strip().lower().decode("latin-1")


class DecodedRequest:
    """The inputs and options of a request, independent of its protocol.

    Args:
        inputs: arrays by input name, batch dimension first.
        rows: number of rows.
        style: form of the response, of a type that only the codec interprets.
        lengths: unpadded length of each row, by padded input.
        parameters: JSON text of the request's parameters to forward; empty if there are none.
        tensors: JSON text of the tensors' parameters to forward; empty if there are none.
        timeout_ms: timeout stated in the body; None if there is none.
    """

    __slots__ = ("inputs", "lengths", "parameters", "rows", "style", "tensors", "timeout_ms")

    def __init__(  # noqa: PLR0913 (CONTRIBUTING.md, Writing for mypyc)
        self,
        inputs: dict[str, Array],
        rows: int,
        style: Any = None,
        *,
        lengths: dict[str, Sequence[int]] | None = None,
        parameters: bytes = NO_BYTES,
        tensors: bytes = NO_BYTES,
        timeout_ms: float | None = None,
    ) -> None:
        self.inputs = inputs
        self.rows = rows
        self.style = style
        self.lengths: dict[str, Sequence[int]] = {} if lengths is None else lengths
        self.parameters = parameters
        self.tensors = tensors
        self.timeout_ms = timeout_ms

    def with_inputs(self, inputs: dict[str, Array]) -> "DecodedRequest":
        """Return a copy of the request with other inputs of the same row count."""
        return DecodedRequest(
            inputs,
            self.rows,
            self.style,
            parameters=self.parameters,
            tensors=self.tensors,
            timeout_ms=self.timeout_ms,
        )


class HttpResponse:
    """One HTTP response: the body in pieces, and additional header lines, each with its line end."""

    __slots__ = ("body", "content_type", "lines", "size_bytes", "status")

    def __init__(
        self, status: int, body: Sequence[bytes | memoryview], content_type: bytes = JSON, lines: bytes = NO_BYTES
    ) -> None:
        self.status = status
        self.body = body
        self.size_bytes = sum(map(len, body))
        """Size of the body."""
        self.content_type = content_type
        self.lines = lines

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return name, in lower case, and value of each additional header line."""
        named = [line.partition(b":") for line in self.lines.split(b"\r\n") if line]
        return [(name.lower(), value.strip()) for name, _, value in named]


class Codec(Protocol):
    """The decoder and encoder of one client protocol."""

    def decode(self, call: InferCall, signature: ModelSignature) -> DecodedRequest:
        """Decode a request; raise a `ProxyError` if it is invalid."""

    def encode(
        self,
        decoded: DecodedRequest,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> HttpResponse:
        """Return the response to the ``decoded`` request."""

    def error(self, error: ProxyError) -> HttpResponse:
        """Return ``error`` in the protocol's format."""


def parse_json(body: bytes | memoryview) -> Any:
    """Return the JSON value of ``body``; NaN and infinities are not JSON.

    Raises:
        BodyTooLarge: the body has so many values that parsing them would delay other requests.
        InvalidRequest: the body is not valid JSON.
    """
    # A shorter body cannot exceed a limit.
    if len(body) > MAX_LISTS:
        check_values(bytes(body))
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"malformed JSON: {error}") from None


def check_rows(rows: int) -> None:
    """Reject a request with more than `MAX_ROWS` rows."""
    if rows > MAX_ROWS:
        raise BodyTooLarge(f"the request has {rows} rows; at most {MAX_ROWS} are allowed. Send several requests")


def check_values(text: bytes) -> None:
    """Reject JSON text of too many values, which would take too much memory."""
    lists, values = text.count(b"[") + text.count(b"{"), text.count(b",")
    if lists > MAX_LISTS or values > MAX_VALUES:
        raise BodyTooLarge(
            f"the JSON has about {lists} lists and objects and {values} values; at most {MAX_LISTS} and"
            f" {MAX_VALUES} are allowed in one request. Send fewer rows per request, or binary tensors"
        )


def json_text(value: Any, option: int = 0) -> bytes:
    """Return a parsed ``value`` as JSON text to forward."""
    try:
        # The value is one level deeper in the batch; its depth must be checked before, as a batch is shared.
        return orjson.dumps([value], option=option)[1:-1]
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(f"the JSON is nested too deeply to be forwarded: {error}") from None


def check_integers(body: bytes | memoryview) -> None:
    """Reject JSON integers beyond 64 bits, which orjson would round.

    Used for bodies with parameters that are forwarded as JSON. Tensor values are checked by their datatype instead.
    """
    text = bytes(body)
    if _LONG not in text.translate(_ZEROS):
        return
    # Every second part between quotes, once escaped ones are removed, is outside of strings.
    outside = b" ".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]) + b" "
    zeros = outside.translate(_ZEROS)
    start = zeros.find(_LONG)
    while start >= 0:
        end = zeros.find(b" ", start)
        before, digits, after = outside[max(start - 2, 0) : start], outside[start:end], outside[end : end + 1]
        # Digits of a fraction or an exponent, or followed by one, are part of a floating-point number.
        part_of_float = after in (b".", b"e", b"E") or before[-1:] in (b".", b"e", b"E") or before[:1] in (b"e", b"E")
        limit = 2**63 if before[-1:] == b"-" else 2**64 - 1
        if not part_of_float and (len(digits) > 20 or int(digits) > limit):
            raise InvalidRequest(
                f"{shown(digits.decode())} is an integer beyond 64 bits, which JSON parsers round."
                " Send it as a string, or with an exponent if a floating-point number is meant"
            )
        start = zeros.find(_LONG, end)


def shown(value: Any) -> str:
    """Format a client's ``value`` for a message, shortened."""
    return _SHOWN.repr(value)


def error_document(error: ProxyError) -> dict[str, Any]:
    """Return an error's JSON object in V1 and V2, with the failed rows, if any."""
    document: dict[str, Any] = {"error": error.message}
    # Only `RowsFailed` has errors of rows.
    rows = getattr(error, "errors", None)
    if rows:
        document["errors"] = encode_row_errors(rows)
    return document


def json_response(status: int, document: Any) -> HttpResponse:
    """Return ``document`` as a JSON response; NaN and infinities become null."""
    return HttpResponse(status, (orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY),))
