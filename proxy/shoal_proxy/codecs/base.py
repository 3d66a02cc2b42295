"""What all codecs share: the call, what is decoded from it, and the reply."""

from collections.abc import Mapping, Sequence
from reprlib import Repr
from typing import Any, Protocol

import orjson

from shoal_proxy.errors import BodyTooLarge, InvalidRequest, ProxyError
from shoal_proxy.model.signature import ModelSignature
from shoal_schema import headers
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import encode_row_errors

JSON = b"application/json"
OCTETS = b"application/octet-stream"
NO_BYTES = b""
EXECUTED = {ran: f"{headers.EXECUTED}: {word}\r\n".encode() for ran, word in ((True, "maybe"), (False, "no"))}
"""The header line of an error: whether the runtime may have executed rows of the request."""

MAX_LISTS = 1 << 20
"""Lists and objects in one JSON body, about: some 100 bytes and half a microsecond each."""
MAX_ROWS = 1 << 18
MAX_VALUES = 1 << 23
"""Values in one JSON body, about."""
_LONG = b"0" * 19
"""The fewest digits that a whole number beyond 64 bits has, each as a zero."""
_ZEROS = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))
"""A table that makes a zero of each digit and a space of all else: to search for is quicker than to match."""

_SHOWN = Repr()
_SHOWN.maxstring = _SHOWN.maxother = 200
_SHOWN.maxlist = _SHOWN.maxdict = 16


class Call:
    """One HTTP request to an infer route: lower-case header names, the whole body."""

    __slots__ = ("body", "headers")

    def __init__(self, headers: Mapping[bytes, bytes], body: bytes | memoryview) -> None:
        self.headers = headers
        self.body = body

    @property
    def says_json(self) -> bool:
        """Return quickly whether this is the common case; `media_type` says it exactly."""
        return self.headers.get(b"content-type") == JSON

    @property
    def media_type(self) -> str:
        """Return the content type without its parameters, in lower case; empty when there is none."""
        return self.headers.get(b"content-type", NO_BYTES).partition(b";")[0].strip().lower().decode("latin-1")


class Decoded:
    """What a caller asks: canonical inputs, and how it wants the answer.

    ``style`` belongs to the codec that made it. ``parameters`` and ``tensors`` are JSON text to forward, empty when
    there is nothing; ``timeout_ms`` is the protocol's own deadline.
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

    def with_inputs(self, inputs: dict[str, Array]) -> "Decoded":
        """Return the same request for as many rows of other numbers."""
        return Decoded(
            inputs,
            self.rows,
            self.style,
            parameters=self.parameters,
            tensors=self.tensors,
            timeout_ms=self.timeout_ms,
        )


class Reply:
    """One HTTP answer: its body in pieces that need not be joined, and more header lines, each with its end."""

    __slots__ = ("body", "content_type", "lines", "size_bytes", "status")

    def __init__(
        self, status: int, body: Sequence[bytes | memoryview], content_type: bytes = JSON, lines: bytes = NO_BYTES
    ) -> None:
        self.status = status
        self.body = body
        self.size_bytes = sum(map(len, body))
        """Of the body."""
        self.content_type = content_type
        self.lines = lines


class Codec(Protocol):
    """One caller's protocol."""

    name: str

    def decode(self, call: Call, signature: ModelSignature) -> Decoded:
        """Return what ``call`` asks; raises a `ProxyError` that names what is wrong with it."""

    def encode(
        self,
        decoded: Decoded,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> Reply:
        """Return the answer to what was ``decoded``."""

    def error(self, error: ProxyError) -> Reply:
        """Return ``error`` in the protocol's shape."""


def parse_json(body: bytes | memoryview) -> Any:
    """Return the JSON value of ``body``; NaN and infinities are not JSON.

    Raises:
        BodyTooLarge: it holds so many values that reading them would stop everybody else.
        InvalidRequest: it is malformed.
    """
    if len(body) > MAX_LISTS:
        check_values(bytes(body))
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"malformed JSON: {error}") from None


def check_rows(rows: int) -> None:
    """Refuse a request of so many rows that to answer it would stop everybody else."""
    if rows > MAX_ROWS:
        raise BodyTooLarge(f"{rows} rows in one request; at most {MAX_ROWS} are taken: send them in several")


def check_values(text: bytes) -> None:
    """Count before anything is made: a parsed value takes up to a hundred times the memory of its text."""
    lists, values = text.count(b"[") + text.count(b"{"), text.count(b",")
    if lists > MAX_LISTS or values > MAX_VALUES:
        raise BodyTooLarge(
            f"the JSON holds about {lists} lists and objects and {values} values; at most {MAX_LISTS} and"
            f" {MAX_VALUES} are read from one request: send fewer rows in each, or binary tensors"
        )


def json_text(value: Any, option: int = 0) -> bytes:
    """Return ``value``, which came as JSON, as JSON text to be sent on."""
    try:
        # In a list, because it will lie one level deeper in the batch, where it is too late to refuse it.
        return orjson.dumps([value], option=option)[1:-1]
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(f"JSON nested too deeply to be sent on: {error}") from None


def check_integers(body: bytes | memoryview) -> None:
    """Refuse whole numbers beyond 64 bits: orjson reads them as floats, and so would they be sent on.

    For JSON of which a part is sent on as JSON; what becomes a tensor is checked by its datatype.
    """
    text = bytes(body)
    if _LONG not in text.translate(_ZEROS):
        return
    outside = b" ".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]) + b" "
    zeros = outside.translate(_ZEROS)
    start = zeros.find(_LONG)
    while start >= 0:
        end = zeros.find(b" ", start)
        before, digits = outside[max(start - 2, 0) : start], outside[start:end]
        if _is_whole(before, outside[end : end + 1]) and _beyond_64_bits(digits, before[-1:] == b"-"):
            raise InvalidRequest(
                f"{shown(digits.decode())} is a whole number beyond 64 bits, which JSON readers round:"
                " send it as a string, or with an exponent if a floating-point number is meant"
            )
        start = zeros.find(_LONG, end)


def _is_whole(before: bytes, after: bytes) -> bool:
    """Return whether digits between these are a number of their own, no part of a fraction and without an exponent."""
    return after not in (b".", b"e", b"E") and before[-1:] not in (b".", b"e", b"E") and before[:1] not in (b"e", b"E")


def _beyond_64_bits(digits: bytes, negative: bool) -> bool:  # noqa: FBT001 (reads as the word it is)
    return len(digits) > 20 or int(digits) > (2**63 if negative else 2**64 - 1)


def shown(value: Any) -> str:
    """Return a caller's ``value`` for a message: cut short, and not deeper than Python's stack."""
    return _SHOWN.repr(value)


def error_document(error: ProxyError) -> dict[str, Any]:
    """Return the error as V1 and V2 callers know it, with the failed rows where there are some."""
    document: dict[str, Any] = {"error": error.message}
    rows = getattr(error, "errors", None)
    if rows:
        document["errors"] = encode_row_errors(rows)
    return document


def json_reply(status: int, document: Any) -> Reply:
    """Return ``document`` as a JSON reply; NaN and infinities become null, which is all that JSON has for them."""
    return Reply(status, (orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY),))
