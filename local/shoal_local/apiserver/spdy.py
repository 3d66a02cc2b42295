"""The server's side of SPDY/3.1 for `kubectl port-forward`, which uses no flow control."""

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# The dictionary of header compression, from the specification of SPDY/3, in two parts.
_WORDS = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow
authorization cache-control connection content-base content-encoding content-language content-length content-location
content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match
if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range
referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get
status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 "
    "Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 "
    "Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept "
    "Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,"
    "sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)

_VERSION = 3
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING = 1, 2, 3, 6
_FIN = 1
_HEAD_BYTES = 8
MAX_FRAME_BYTES = 2**20
MAX_HEADERS_BYTES = 2**16


DICTIONARY = b"".join(struct.pack(">I", len(word)) + word.replace("_", " ").encode() for word in _WORDS.split())
DICTIONARY += _REST.encode()


class BrokenFrameError(ValueError):
    """The client's bytes are not SPDY/3.1."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A frame that opens a stream of the client."""

    stream: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Data:
    """A frame with bytes of a stream; ``last``: the client sends no more."""

    stream: int
    data: bytes
    last: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """A frame that rejects further data of a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping frame; the response is the same frame."""

    response: bytes


Frame = Opened | Data | Reset | Ping


@dataclass(slots=True)
class Session:
    """The state of one connection: incomplete frame and header compression."""

    _buffer: bytes = b""
    _inflate: "zlib._Decompress" = field(default_factory=lambda: zlib.decompressobj(zdict=DICTIONARY))
    _deflate: "zlib._Compress" = field(default_factory=lambda: zlib.compressobj(zdict=DICTIONARY))

    def receive(self, data: bytes) -> Iterator[Frame]:
        """Yield the complete frames; skip those that a server does not use.

        Raises BrokenFrameError: the bytes are not SPDY/3.1.
        """
        self._buffer += data
        while len(self._buffer) >= _HEAD_BYTES:
            first, rest = struct.unpack(">II", self._buffer[:_HEAD_BYTES])
            # Flags in 8 bits, the length of the body in 24.
            flags, end = rest >> 24, _HEAD_BYTES + (rest & 0xFFFFFF)
            if end > MAX_FRAME_BYTES:
                raise BrokenFrameError(f"a frame of {end} bytes; {MAX_FRAME_BYTES} are allowed")
            if len(self._buffer) < end:
                return
            body, self._buffer = self._buffer[_HEAD_BYTES:end], self._buffer[end:]
            # The first bit is 0 in data frames and 1 in control frames.
            if not first >> 31:
                yield Data(first, body, bool(flags & _FIN))
            elif frame := self._control(first, body):
                yield frame

    def _control(self, first: int, body: bytes) -> Frame | None:
        if (first >> 16) & 0x7FFF != _VERSION:
            raise BrokenFrameError(f"SPDY version {(first >> 16) & 0x7FFF} is not supported")
        kind = first & 0xFFFF
        try:
            if kind == _RST_STREAM:
                return Reset(_stream(body))
            if kind != _SYN_STREAM:
                return Ping(_control(_PING, body)) if kind == _PING else None
            # Headers start at byte 10. Bounded, as a small block may inflate to gigabytes.
            data = self._inflate.decompress(body[10:], MAX_HEADERS_BYTES)
            # A count, then length and text of each name and value.
            (count,) = struct.unpack_from(">I", data)
            at, texts = 4, []
            for _ in range(2 * min(count, MAX_HEADERS_BYTES)):
                (length,) = struct.unpack_from(">I", data, at)
                at += 4 + length
                texts.append(data[at - length : at].decode())
            return Opened(_stream(body), dict(zip(texts[::2], texts[1::2], strict=True)))
        except (struct.error, zlib.error, UnicodeDecodeError) as error:
            raise BrokenFrameError(f"a control frame cannot be parsed: {error}") from None

    def accept(self, stream: int) -> bytes:
        """Return the frame that accepts a stream of the client."""
        # A block without headers; its compressor's state spans all frames.
        nothing = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_REPLY, struct.pack(">I", stream) + nothing)


def data_frame(stream: int, data: bytes, *, last: bool = False) -> bytes:
    """Return a data frame; ``last`` closes the server's side of the stream."""
    return struct.pack(">II", stream, (_FIN if last else 0) << 24 | len(data)) + data


def _stream(body: bytes) -> int:
    return int(struct.unpack_from(">I", body)[0]) & 0x7FFFFFFF


def _control(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", 1 << 31 | _VERSION << 16 | kind, len(body)) + body
