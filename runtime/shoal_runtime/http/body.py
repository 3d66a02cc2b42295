"""Reader of large request bodies, from the socket directly into the memory that the model uses."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from shoal_schema.interfaces.headers import HEADER_LENGTH
from shoal_schema.wire.body import Body

LARGE_BYTES: Final = 16384
BODY: Final = "shoal.body"
"""Key in an ASGI scope: the `Body` of a large request, else None."""


def large_body(headers: Mapping[bytes, bytes], limit_bytes: int) -> Body | None:
    """Return a buffer for a request's body; None if the body is small or exceeds `limit_bytes`."""
    size_bytes = int(headers.get(b"content-length", 0))
    if not LARGE_BYTES < size_bytes <= limit_bytes:
        return None
    # The binary part after the JSON is aligned, so that tensors need no copy.
    json_bytes = headers.get(HEADER_LENGTH.encode(), b"")
    aligned_at = int(json_bytes) if json_bytes.isdigit() and len(json_bytes) < 16 else 0
    return Body(size_bytes, aligned_at=aligned_at)


# One buffer for all connections: its bytes are copied out before the event loop reads again.
_HEAD: Final = memoryview(bytearray(LARGE_BYTES))


class BodyReader(asyncio.BufferedProtocol):
    """Socket protocol that reads large request bodies into their final memory.

    All other bytes are forwarded to the HTTP protocol, including the start of a large body.

    Args:
        owner: HTTP protocol of the connection.
        on_more: function that receives the number of bytes read into `body`.
        on_complete: function that is called after the last byte of `body`.
    """

    def __init__(
        self, owner: asyncio.Protocol, on_more: Callable[[int], None], on_complete: Callable[[], None]
    ) -> None:
        self._owner = owner
        self._on_more = on_more
        self._on_complete = on_complete
        self.body: Body | None = None
        """The body that is being read, if any."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Forward the event to the HTTP protocol."""
        self._owner.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer into which asyncio reads the next bytes."""
        return _HEAD if self.body is None else self.body.rest

    def buffer_updated(self, nbytes: int) -> None:
        """Forward the read bytes to the HTTP protocol, or count them as bytes of the body."""
        if self.body is None:
            self._owner.data_received(bytes(_HEAD[:nbytes]))
            return
        # The bytes are in place already: get_buffer returned the body's memory.
        self.body.filled(nbytes)
        self._on_more(nbytes)
        if self.body.complete:
            self.body = None
            self._on_complete()

    def eof_received(self) -> bool | None:
        """Forward the event to the HTTP protocol."""
        return self._owner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forward the event to the HTTP protocol."""
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Forward the event to the HTTP protocol."""
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        """Forward the event to the HTTP protocol."""
        self._owner.resume_writing()
