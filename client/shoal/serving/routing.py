"""Route HTTP requests by the model in their path. Pure.

A scanner splits a connection's bytes into requests. Malformed requests are passed on to the proxy: a connection belongs
to one client, so no other client is affected.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from shoal_schema.interfaces.protocols import DOCS, HTTP

MAX_HEAD_BYTES: Final = 64 << 10
"""More than proxies accept (32 KiB by default), so that they reject it in the client's protocol."""
MAX_LINE_BYTES: Final = 4096
"""Length of a chunk-size line with its extensions, or of a trailer."""
SLICE_BYTES: Final = 16 << 10
"""Bytes scanned at a time."""
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one request."""

    data: bytes
    model: str | None = None
    """Of the first piece of a request: the result of `model_of`; None for later pieces."""


def model_of(target: str) -> str:
    """Return the model that a request target names.

    Without a model, return the path if it is a known path that names none, otherwise ``""``.
    """
    path = target.partition("?")[0]
    # Absolute form, as sent to HTTP proxies: http://host/path.
    if not path.startswith("/"):
        path = "/" + path.partition("://")[2].partition("/")[2]
    return HTTP.model_of(unquote(path)) or (path if path in HTTP.nameless or path in DOCS else "")


class Scanner:
    """Parser that splits the bytes of one connection into pieces of requests."""

    def __init__(self) -> None:
        self._held = b""
        """An incomplete head, or an incomplete line between chunks."""
        self._left: int | None = 0
        """Bytes to pass on before the next head or line; None: pass on everything."""
        self._chunked = self._trailers = False

    @property
    def between(self) -> bool:
        """Whether the last request is complete, and no byte of the next has arrived."""
        return not (self._held or self._left or self._chunked) and self._left is not None

    def feed(self, data: bytes) -> list[Piece]:
        """Return the pieces that ``data`` completes, in order."""
        pieces: list[Piece] = []
        # In slices, because each line copies the bytes after it.
        for start in range(0, len(data), SLICE_BYTES):
            rest = data[start : start + SLICE_BYTES]
            while rest:
                if self._left is None:
                    pieces.append(Piece(rest))
                    break
                if self._left:
                    body, rest = rest[: self._left], rest[self._left :]
                    self._left -= len(body)
                    pieces.append(Piece(body))
                elif self._chunked:
                    rest = self._scan_line(rest, pieces)
                else:
                    rest = self._scan_head(rest, pieces)
        return pieces

    def _scan_head(self, data: bytes, pieces: list[Piece]) -> bytes:
        """Consume a head if it is complete; return the bytes after it."""
        held = self._held + data
        if not self._held:
            held = held.lstrip(b"\r\n")  # some clients send a line end after a body
        end = held.find(_END) + len(_END)
        if end < len(_END):  # find() returned -1
            self._held = held
            if len(held) > MAX_HEAD_BYTES:
                self._pass_all(held, pieces, "")
            return b""
        self._held = b""
        head = held[:end]
        # Request line: method, target, version.
        words = head.partition(b"\r\n")[0].split(b" ")
        model = model_of(words[1].decode("latin-1")) if len(words) == 3 else ""
        if not self._begin_body(head):
            self._pass_all(held, pieces, model)
            return b""
        pieces.append(Piece(head, model))
        return held[end:]

    def _pass_all(self, held: bytes, pieces: list[Piece], model: str) -> None:
        self._held, self._left = b"", None
        pieces.append(Piece(held, model))

    def _begin_body(self, head: bytes) -> bool:
        """Store how the body ends; return False if its framing is ambiguous (RFC 9112, section 6.3)."""
        lengths, codings = [], []
        for line in head.split(b"\r\n")[1:-2]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                lengths.append(value.strip())
            elif name.lower() == b"transfer-encoding":
                codings.append(value.strip().lower())
        # Transfer-Encoding overrides Content-Length; both together are ambiguous.
        if codings:
            self._chunked = True
            return codings == [b"chunked"] and not lengths
        length = lengths[0] if lengths else b"0"
        if len(lengths) > 1 or not length.isdigit() or len(length) > 15:
            return False
        self._left = int(length)
        return True

    def _scan_line(self, data: bytes, pieces: list[Piece]) -> bytes:
        """Consume a chunk-size line or a trailer if it is complete; return the bytes after it."""
        held = self._held + data
        end = held.find(b"\r\n") + 2
        if end < 2:
            self._held = held
            if len(held) > MAX_LINE_BYTES:
                # Not a valid line: let the proxy reject it.
                pieces.append(Piece(held))
                self._held, self._left = b"", None
            return b""
        line, self._held = held[:end], b""
        pieces.append(Piece(line))
        if self._trailers:
            self._trailers = self._chunked = end > 2
            return held[end:]
        digits = line.partition(b";")[0].strip()
        if not _SIZE.fullmatch(digits):  # int() would accept signs and underscores
            self._left = None
            return held[end:]
        size = int(digits, 16)
        self._trailers = size == 0
        # A chunk is followed by a line end.
        self._left = size + 2 if size else 0
        return held[end:]
