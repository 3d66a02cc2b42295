"""Decompression of request bodies in steps of bounded work. Pure.

A body may decompress to a thousand times its size. So each step reads at most `FEED_BYTES` and writes at most
`STEP_BYTES`, and the calling code counts both before the next step.
"""

import zlib
from collections import deque
from typing import Final

from shoal_proxy.errors import InvalidRequest

STEP_BYTES: Final = 65536
"""Most bytes that one step writes: less than a millisecond of work."""
FEED_BYTES: Final = 32768
"""Most bytes that one step reads."""
MAX_MEMBERS: Final = 1024
"""Most concatenated gzip streams in one body: even an empty one costs memory and time."""
CODINGS: Final = b"gzip, deflate"
"""The supported content codings, as Accept-Encoding lists them."""
_SMALL_BYTES: Final = 65536
_WINDOW_BITS: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}  # zlib: 16 more selects the gzip format


def is_supported_coding(coding: bytes) -> bool:
    """Return whether a Content-Encoding is supported."""
    return coding.lower() in _WINDOW_BITS


class BodyDecompressor:
    """Decompressor of one request body, in steps.

    Args:
        coding: the value of Content-Encoding, one for which `is_supported_coding` holds.
    """

    __slots__ = ("_bits", "_coding", "_full", "_inflate", "_members", "_pieces", "_plain", "_rest")

    def __init__(self, coding: bytes) -> None:
        self._coding = coding.lower().decode("latin-1")
        self._bits = _WINDOW_BITS[coding.lower()]
        self._inflate = zlib.decompressobj(self._bits)
        self._members = 1
        self._pieces: deque[bytes] = deque()
        self._rest: bytes = b""
        """The unread part of the current piece."""
        self._full = False
        """Whether the last step filled its output: more may follow without further input."""
        self._plain = bytearray()

    @property
    def waiting(self) -> bool:
        """Return whether another `step` has bytes to read or write."""
        return self._full or bool(self._rest) or bool(self._pieces)

    def add(self, piece: bytes) -> None:
        """Append compressed bytes."""
        for start in range(0, len(piece), FEED_BYTES):
            self._pieces.append(piece[start : start + FEED_BYTES])

    def step(self) -> tuple[int, int]:
        """Decompress a part; return the numbers of bytes read and written.

        Raises:
            InvalidRequest: the stream is corrupt, or there are too many streams.
        """
        if not self._rest and self._pieces:
            self._rest = self._pieces.popleft()
        if self._inflate.eof:
            # More input after the end of a stream: gzip allows several in a row (RFC 1952, section 2.2).
            if self._coding == "deflate":
                raise InvalidRequest("bytes follow the end of the deflate stream")
            if self._members >= MAX_MEMBERS:
                raise InvalidRequest(f"the body holds more than {MAX_MEMBERS} gzip streams")
            self._members += 1
            self._inflate = zlib.decompressobj(self._bits)
        given_bytes = len(self._rest)
        try:
            # What exceeds the limit stays in `unconsumed_tail` for the next step.
            made = self._inflate.decompress(self._rest, STEP_BYTES)
        except zlib.error as error:
            raise InvalidRequest(f"the body is not a valid {self._coding} stream: {error}") from None
        self._rest = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
        self._full = len(made) == STEP_BYTES and not self._inflate.eof
        self._plain += made
        return given_bytes - len(self._rest), len(made)

    def take(self) -> bytes | memoryview:
        """Return the decompressed body, after the last piece and the last step.

        Raises:
            InvalidRequest: the stream is truncated.
        """
        if not self._inflate.eof:
            raise InvalidRequest(f"the body is a truncated {self._coding} stream")
        plain, self._plain = self._plain, bytearray()
        return bytes(plain) if len(plain) <= _SMALL_BYTES else memoryview(plain)
