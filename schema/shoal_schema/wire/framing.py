"""Framing rules of HTTP/1.1 for the proxy and the runtime.

The parser (llhttp) rejects most malformed requests. It accepts more than a server behind other servers may: a body
whose end is ambiguous (request smuggling, RFC 9112, section 11.2), upgrades, unbounded headers and chunk extensions.
Pure: no I/O.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from shoal_schema.interfaces.headers import HEADER_LENGTH, PREFER, PRIORITY, TIMEOUT_MS, TRACESTATE

FIELD_BYTES: Final = 32
"""Overhead counted per header, as in HTTP/2 (RFC 9113, section 6.5.2): many small ones need memory too."""
_FRAMING: Final = 16
"""Limit of framing bytes per byte of a chunked body; one byte per chunk has 5."""


class FramingError(Exception):
    """Error of a request that cannot be processed further; ``status`` is the HTTP status of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class HeadMeter:
    """Counter of the bytes of a request's head, trailers and framing, with one limit."""

    __slots__ = ("_head_bytes", "_max_head_bytes", "_unreported_bytes", "body_bytes")

    def __init__(self, max_head_bytes: int) -> None:
        self._max_head_bytes = max_head_bytes
        self._head_bytes = 0
        self._unreported_bytes = 0
        self.body_bytes = 0

    def begin(self) -> None:
        """Reset all counters for the next request."""
        self._head_bytes = self._unreported_bytes = self.body_bytes = 0

    def begin_body(self) -> None:
        """Reset the count of unreported bytes at the start of a body."""
        self._unreported_bytes = 0

    def target(self, size_bytes: int) -> None:
        """Count a part of the request line."""
        self._count_head(size_bytes)

    def field(self, name: bytes, value: bytes) -> None:
        """Count a header or trailer."""
        self._count_head(len(name) + len(value) + FIELD_BYTES)

    def unreported(self, size_bytes: int, *, in_body: bool) -> None:
        """Count bytes that the parser consumed without an event: of an unfinished header or chunk extension."""
        self._unreported_bytes += size_bytes
        # Before the body these bytes belong to an unfinished header.
        if not in_body and self._unreported_bytes > self._max_head_bytes:
            raise self._too_large()
        # In the body they are framing of chunks.
        if in_body and self._unreported_bytes > self._max_head_bytes + _FRAMING * self.body_bytes:
            raise FramingError(400, "the body's chunk headers and extensions are too large")

    def _count_head(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > self._max_head_bytes:
            raise self._too_large()

    def _too_large(self) -> FramingError:
        return FramingError(431, f"the request's head is over the limit of {self._max_head_bytes} bytes")


def check_head(version: str, headers: Mapping[bytes, bytes]) -> None:
    """Reject a head with an ambiguous or unsupported body.

    Args:
        version: HTTP version, such as "1.1".
        headers: names in lower case. The parser has rejected repeated lengths, and a length beside a coding.

    Raises:
        FramingError: the body's end is ambiguous, or the version is not supported.
    """
    if version not in ("1.1", "1.0"):
        raise FramingError(505, f"HTTP/{version} is not supported: use HTTP/1.1")
    # RFC 9112, section 6.1.
    coding = headers.get(b"transfer-encoding")
    if coding is None:
        return
    if version == "1.0":
        raise FramingError(400, "HTTP/1.0 has no Transfer-Encoding")
    if coding.lower() != b"chunked":
        text = coding.decode("latin-1")
        raise FramingError(501, f"Transfer-Encoding {text!r} is not supported: use chunked only")


_ONCE: Final = {b"host": "Host", b"content-encoding": "Content-Encoding"}
_LISTS: Final = frozenset({b"accept-encoding", PREFER.encode(), TRACESTATE.encode()})
"""Lists that the proxy reads; requests may spread them over several lines."""
_ONE_VALUE: Final = {name.encode(): name for name in (HEADER_LENGTH, TIMEOUT_MS, PRIORITY)}


def check_repeated(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Reject repeated headers, which are ambiguous: some servers use the first one, others the last.

    Host and Content-Encoding may occur once. Shoal's own headers may be repeated with the same value, as some proxies
    repeat them.

    Args:
        headers: names in lower case.

    Raises:
        FramingError: a header is repeated.
    """
    names = [name for name, _ in headers]
    for once, shown in _ONCE.items():
        if names.count(once) > 1:
            raise FramingError(400, f"the request has more than one {shown} header")
    for name, shown in _ONE_VALUE.items():
        if names.count(name) > 1 and len({value for each, value in headers if each == name}) > 1:
            raise FramingError(400, f"the request has several {shown} headers with different values")


def join_lists(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return headers by name: all values of those that are lists (RFC 9110, section 5.3), the last value of others.

    Args:
        headers: names in lower case.
    """
    joined = dict(headers)
    for name in joined.keys() & _LISTS:
        joined[name] = b", ".join([value for each, value in headers if each == name])
    return joined


def check_upgrade(method: bytes) -> None:
    """Reject CONNECT, the only upgrade that cannot be declined.

    Raises:
        FramingError: the method is CONNECT.
    """
    if method == b"CONNECT":
        raise FramingError(501, "CONNECT is not supported")


def without_upgrade(method: bytes, url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a request head as bytes, without its offer to upgrade the protocol.

    The parser treats data after such an offer as another protocol's, although it is the body. A server declines an
    upgrade by continuing in HTTP/1.1 (RFC 9110, section 7.8).
    """
    # Headers keep their order, as repeated ones are joined in it.
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"upgrade":
            continue
        kept = value
        if name == b"connection":
            # The offer is a token of Connection too.
            tokens = [token.strip() for token in value.split(b",")]
            kept = b", ".join([token for token in tokens if token.lower() != b"upgrade"])
        lines.append(b"%b: %b" % (name, kept))
    return b"\r\n".join([*lines, b"", b""])
