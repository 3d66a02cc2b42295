"""Large bodies, read from the socket straight into the memory that the model computes on."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from shoal_schema.headers import HEADER_LENGTH
from shoal_schema.wire.body import Body

LARGE_BYTES: Final = 16384
BODY: Final = "shoal.body"
"""Where an ASGI scope has the `Body` of a request whose body is large, else None."""


def large_body(headers: Mapping[bytes, bytes], limit_bytes: int) -> Body | None:
    """Return room for the body that these headers announce, None when it is small or longer than `limit_bytes`."""
    size_bytes = int(headers.get(b"content-length", 0))
    if not LARGE_BYTES < size_bytes <= limit_bytes:
        return None
    json_bytes = headers.get(HEADER_LENGTH.encode(), b"")
    aligned_at = int(json_bytes) if json_bytes.isdigit() and len(json_bytes) < 16 else 0
    return Body(size_bytes, aligned_at=aligned_at)


_HEAD: Final = memoryview(bytearray(LARGE_BYTES))
# One for all connections: what is read into it is taken out before the event loop reads again.


class BodyReader(asyncio.BufferedProtocol):
    """Stands between a socket and its HTTP protocol, which gets everything but the rest of a large body.

    Args:
        owner: the HTTP protocol.
        on_more: told how many bytes of `body` have come.
        on_complete: called after the last byte of `body`.
    """

    def __init__(
        self, owner: asyncio.Protocol, on_more: Callable[[int], None], on_complete: Callable[[], None]
    ) -> None:
        self._owner = owner
        self._on_more = on_more
        self._on_complete = on_complete
        self.body: Body | None = None
        """What is being read into."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass on."""
        self._owner.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return _HEAD if self.body is None else self.body.rest

    def buffer_updated(self, nbytes: int) -> None:
        """Note what has come."""
        if self.body is None:
            self._owner.data_received(bytes(_HEAD[:nbytes]))
            return
        self.body.filled(nbytes)
        self._on_more(nbytes)
        if self.body.complete:
            self.body = None
            self._on_complete()

    def eof_received(self) -> bool | None:
        """Pass on."""
        return self._owner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on."""
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on."""
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on."""
        self._owner.resume_writing()
