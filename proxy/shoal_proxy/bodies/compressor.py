"""Compression of responses in steps of bounded work. Pure."""

import zlib
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

FEED_BYTES: Final = 16384
"""Most bytes that one step compresses: less than a millisecond of work."""
_LEVEL: Final = 1
"""The fastest level: JSON numbers shrink to 47 %; the default level reaches 43 % in ten times the time."""
_JUDGED_BYTES: Final = 131072
"""After this many bytes it is decided whether compression is worthwhile."""
_WORTH: Final = 0.8
"""A body that does not shrink below this share is sent uncompressed; binary floats stay at 90 %."""
_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}  # zlib: 16 more selects the gzip format


@lru_cache(maxsize=64)
def coding_for(accepted: bytes) -> bytes | None:
    """Return the content coding for an Accept-Encoding; None for no coding.

    gzip is preferred over deflate of the same weight (RFC 9110, section 12.5.3).
    """
    weights: dict[bytes, float] = {}
    for part in accepted.lower().split(b","):
        name, _, parameters = part.partition(b";")
        parameter, _, value = parameters.partition(b"=")
        weight = 1.0
        if parameter.strip() == b"q":
            try:
                weight = float(value)
            except ValueError:
                weight = 0.0
        weights[name.strip()] = weight if 0.0 <= weight <= 1.0 else 0.0
    others = weights.get(b"*", 0.0)
    best: bytes | None = None
    most = 0.0
    for coding in _WINDOW_BITS:
        weight = weights.get(coding, others)
        if weight > most:
            best, most = coding, weight
    return best if most >= weights.get(b"identity", 0.0) else None


class BodyCompressor:
    """Compressor of one response body, in steps."""

    __slots__ = ("_deflate", "_made", "_pieces", "_plain", "_read_bytes", "given_up", "made_bytes")

    def __init__(self, coding: bytes, body: Sequence[bytes | memoryview]) -> None:
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[coding])
        self._plain = body
        self._pieces: deque[memoryview] = deque()
        for part in body:
            view = memoryview(part)
            self._pieces.extend([view[start : start + FEED_BYTES] for start in range(0, len(view), FEED_BYTES)])
        self._made: list[bytes] = []
        self._read_bytes = 0
        self.made_bytes = 0
        self.given_up = False
        """Whether the body is sent uncompressed, as it does not shrink."""

    def step(self) -> bool:
        """Compress a part of the body; return whether another step is needed."""
        piece = self._pieces.popleft()
        self._take(self._deflate.compress(piece))
        self._read_bytes += len(piece)
        if self._pieces:
            self.given_up = self._read_bytes >= _JUDGED_BYTES and self.made_bytes > _WORTH * self._read_bytes
            return not self.given_up
        self._take(self._deflate.flush())
        self.given_up = self.made_bytes > _WORTH * self._read_bytes
        return False

    def _take(self, made: bytes) -> None:
        if made:
            self._made.append(made)
            self.made_bytes += len(made)

    @property
    def body(self) -> Sequence[bytes | memoryview]:
        """The body to send, after the last step."""
        return self._plain if self.given_up else self._made
