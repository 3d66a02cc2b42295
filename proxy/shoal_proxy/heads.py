"""What requests' heads say, worked out once for all requests that repeat one byte for byte.

A client that keeps its connection sends the same request line and the same headers again and again; only the body
changes. A head that was parsed, understood and served is remembered, and the next request that begins with it needs no
parser. Heads that name a single request (a trace, an id) are different each time and not remembered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shoal_proxy.batching.pending import LaneKey
from shoal_proxy.codecs.base import Codec

END = b"\r\n\r\n"
LONGEST_BYTES = 2048
_MOST = 1024
"""Heads remembered: bodies differ in length, and so do their heads."""
_METHODS = (b"POST ", b"PUT /")
_NEVER_AGAIN = frozenset({b"x-request-id", b"traceparent", b"tracestate", b"expect", b"upgrade", b"transfer-encoding"})
"""Headers that differ from request to request, or that ask for more than to be answered."""


@dataclass(frozen=True)
class Route:
    """One infer path: which codec speaks there."""

    codec: Codec


class Terms(NamedTuple):
    """What a request's headers ask of the queue."""

    timeout_s: float
    """0 when they name none."""
    lane: LaneKey
    forwarded: tuple[tuple[bytes, bytes], ...]
    trace: Mapping[str, str] | None


class Head:
    """A request line and headers; header names in lower case."""

    __slots__ = ("headers", "keep_alive", "route", "terms")

    def __init__(self, route: Route, headers: Mapping[bytes, bytes], *, keep_alive: bool) -> None:
        self.route = route
        self.headers = headers
        self.keep_alive = keep_alive
        self.terms: Terms | None = None
        """None until somebody has made sense of the headers."""


class Heads:
    """Heads by their bytes; all are forgotten when there are too many."""

    def __init__(self, largest_body_bytes: int) -> None:
        self._known: dict[bytes, tuple[Head, int]] = {}
        self._largest_body_bytes = largest_body_bytes

    def find(self, data: bytes) -> tuple[Head, int] | None:
        """Return the known head of ``data`` and where its body starts, if ``data`` is one whole request."""
        start = data.find(END, 0, LONGEST_BYTES) + 4
        known = self._known.get(data[:start])
        return (known[0], start) if known is not None and start + known[1] == len(data) else None

    def remember(self, data: bytes, head: Head) -> None:
        """Remember the ``head`` of ``data``, if ``data`` was one whole request of which the like may come again."""
        start = data.find(END, 0, LONGEST_BYTES) + 4
        size_bytes = len(data) - start
        if start < 4 or size_bytes > self._largest_body_bytes or not data.startswith(_METHODS):
            return
        declared = head.headers.get(b"content-length")
        if declared is None or int(declared) != size_bytes:
            return
        if head.terms is not None and head.keep_alive and head.headers.keys().isdisjoint(_NEVER_AGAIN):
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[data[:start]] = head, size_bytes
