"""Where a request of HTTP/1.1 ends, and how much of it may come: the rules that proxy and runtime enforce alike.

A parser (llhttp) reads what comes and refuses most of what is malformed. It takes more than a server behind others may:
a body whose end depends on who looks, an offer to upgrade together with all that follows it, headers and extensions of
chunks without end. Pure: the connections that ask are shells of their own in each process.
"""

from collections.abc import Mapping, Sequence
from typing import Final

FIELD_BYTES: Final = 32
"""What each header costs beyond its letters, as HTTP/2 counts: many small ones take memory too."""
_FRAMING: Final = 16
"""Bytes on the wire for each byte of a chunked body, beyond which its framing is an attack: one byte a chunk is 6."""


class FramingError(Exception):
    """What came is no request that can be answered any further; ``status`` is the answer's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Meter:
    """Counts what comes in of one request, against a limit on all of it that is not its body."""

    __slots__ = ("_head_bytes", "_max_head_bytes", "_unreported_bytes", "body_bytes")

    def __init__(self, max_head_bytes: int) -> None:
        self._max_head_bytes = max_head_bytes
        self._head_bytes = 0
        self._unreported_bytes = 0
        self.body_bytes = 0

    def begin(self) -> None:
        """Start with another request."""
        self._head_bytes = self._unreported_bytes = self.body_bytes = 0

    def begin_body(self) -> None:
        """Start with the body of the same request."""
        self._unreported_bytes = 0

    def target(self, size_bytes: int) -> None:
        """Count a piece of the request line."""
        self._count_head(size_bytes)

    def field(self, name: bytes, value: bytes) -> None:
        """Count a header, or a trailer."""
        self._count_head(len(name) + len(value) + FIELD_BYTES)

    def unreported(self, size_bytes: int, *, in_body: bool) -> None:
        """Count what the parser took without a word: of a header, of a chunk's extension, that does not end."""
        self._unreported_bytes += size_bytes
        if not in_body and self._unreported_bytes > self._max_head_bytes:
            raise self._too_large()
        if in_body and self._unreported_bytes > self._max_head_bytes + _FRAMING * self.body_bytes:
            raise FramingError(400, "the body's chunks are all framing")

    def _count_head(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > self._max_head_bytes:
            raise self._too_large()

    def _too_large(self) -> FramingError:
        return FramingError(431, f"the request's head is over the limit of {self._max_head_bytes} bytes")


def check_head(version: str, headers: Mapping[bytes, bytes]) -> None:
    """Refuse a head that leaves open where its request ends.

    Args:
        version: of HTTP, as in "1.1".
        headers: names in lower case. That there is one length, or none beside a coding, the parser has seen to.

    Raises:
        FramingError: it does, or it is of a version that is not spoken.
    """
    if version not in ("1.1", "1.0"):
        raise FramingError(505, f"HTTP/{version} is not spoken here: use HTTP/1.1")
    coding = headers.get(b"transfer-encoding")
    if coding is None:
        return
    if version == "1.0":
        raise FramingError(400, "HTTP/1.0 has no Transfer-Encoding")
    if coding.lower() != b"chunked":
        text = coding.decode("latin-1")
        raise FramingError(501, f"a body with Transfer-Encoding {text!r} is not taken: send it chunked only")


_ONCE: Final = {b"host": "Host", b"content-encoding": "Content-Encoding"}


def check_repeated(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Refuse a head that names two hosts, or the coding of its body twice: readers of the first and of the last differ.

    Args:
        headers: names in lower case.

    Raises:
        FramingError: it does.
    """
    names = [name for name, _ in headers]
    for once, shown in _ONCE.items():
        if names.count(once) > 1:
            raise FramingError(400, f"the request has more than one {shown} header")


def check_upgrade(method: bytes) -> None:
    """Refuse the one request whose upgrade cannot be declined.

    Raises:
        FramingError: it is a CONNECT.
    """
    if method == b"CONNECT":
        raise FramingError(501, "CONNECT is not taken here")


def without_upgrade(method: bytes, url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a head that offers to upgrade, written again without the offer.

    The parser hands over what follows such an offer as another protocol's, though it is the body. Nobody need accept an
    offer: a server that goes on in HTTP/1.1 has declined it.
    """
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"upgrade":
            continue
        kept = value
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            kept = b", ".join([token for token in tokens if token.lower() != b"upgrade"])
        lines.append(b"%b: %b" % (name, kept))
    return b"\r\n".join([*lines, b"", b""])
