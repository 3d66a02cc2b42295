"""Whose a request is, where several models share a port: read in its head; of its body only where it ends.

Pure. Whatever is odd about a request's framing is left to the server that it is for: a connection belongs to one caller
alone, who at worst confuses himself.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

MAX_HEAD_BYTES: Final = 64 << 10
"""More than proxies take (32 KiB by default): they refuse it in the caller's protocol."""
MAX_LINE_BYTES: Final = 4096
"""Of a chunk's size with its extensions, or of a trailer."""
SLICE_BYTES: Final = 16 << 10
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_END: Final = b"\r\n\r\n"
NAMELESS: Final = ("/invocations", "/v1/embeddings", "/v1/rerank", "/v2/rerank")
"""Paths that name no model, and are for one."""
PAGES: Final = ("/docs", "/openapi.json")
_MODEL: Final = re.compile(r"/(?:v1/models|v2/models|predictions|models)/([^/:]+)")


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one request; of its first piece ``model`` is what `model_of` says, and ``""`` where that is nothing."""

    data: bytes
    model: str | None = None


def model_of(target: str) -> str:
    """Return the model that a request's target names; its path, where that is for a model that it does not name."""
    path = target.partition("?")[0]
    if not path.startswith("/"):
        path = "/" + path.partition("://")[2].partition("/")[2]
    found = _MODEL.match(unquote(path))
    if found:
        return found.group(1)
    return path if path in (*NAMELESS, *PAGES) else ""


class Scanner:
    """Cuts what comes on one connection into requests' pieces."""

    def __init__(self) -> None:
        self._held = b""
        """What has come of a head, or of a line between chunks."""
        self._left: int | None = 0
        """Bytes to pass before something is to be read again; None: whatever comes."""
        self._chunked = self._trailers = False

    @property
    def between(self) -> bool:
        """Whether the last request has come whole, and nothing of the next."""
        return not (self._held or self._left or self._chunked) and self._left is not None

    def feed(self, data: bytes) -> list[Piece]:
        """Return the pieces that ``data`` completes, in order."""
        pieces: list[Piece] = []
        # Each line copies what follows it: of a slice, not of all that one read brings.
        for start in range(0, len(data), SLICE_BYTES):
            self._feed(data[start : start + SLICE_BYTES], pieces)
        return pieces

    def _feed(self, data: bytes, pieces: list[Piece]) -> None:
        while data:
            if self._left is None:
                pieces.append(Piece(data))
                return
            if self._left:
                taken, data = data[: self._left], data[self._left :]
                self._left -= len(taken)
                pieces.append(Piece(taken))
            elif self._chunked:
                data = self._line(data, pieces)
            else:
                data = self._head(data, pieces)

    def _head(self, data: bytes, pieces: list[Piece]) -> bytes:
        """Take a head, if all of it is here; return what follows it."""
        held = self._held + data
        if not self._held:
            held = held.lstrip(b"\r\n")  # which some send after a body
        end = held.find(_END) + len(_END)
        if end < len(_END):
            self._held = held
            if len(held) > MAX_HEAD_BYTES:
                self._pass_all(held, pieces, "")
            return b""
        self._held = b""
        head = held[:end]
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
        """Note how its body ends; return whether that is beyond doubt."""
        lengths, codings = [], []
        for line in head.split(b"\r\n")[1:-2]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                lengths.append(value.strip())
            elif name.lower() == b"transfer-encoding":
                codings.append(value.strip().lower())
        if codings:
            self._chunked = True
            return codings == [b"chunked"] and not lengths
        length = lengths[0] if lengths else b"0"
        if len(lengths) > 1 or not length.isdigit() or len(length) > 15:
            return False
        self._left = int(length)
        return True

    def _line(self, data: bytes, pieces: list[Piece]) -> bytes:
        """Take a chunk's size, or a trailer, if all of it is here; return what follows it."""
        held = self._held + data
        end = held.find(b"\r\n") + 2
        if end < 2:
            self._held = held
            if len(held) > MAX_LINE_BYTES:
                self._give_up(pieces)
            return b""
        line, self._held = held[:end], b""
        pieces.append(Piece(line))
        if self._trailers:
            self._trailers = self._chunked = end > 2
            return held[end:]
        digits = line.partition(b";")[0].strip()
        if not _SIZE.fullmatch(digits):  # int() would take signs, and 0x
            self._left = None
            return held[end:]
        size = int(digits, 16)
        self._trailers = size == 0
        self._left = size + 2 if size else 0
        return held[end:]

    def _give_up(self, pieces: list[Piece]) -> None:
        pieces.append(Piece(self._held))
        self._held, self._left = b"", None
