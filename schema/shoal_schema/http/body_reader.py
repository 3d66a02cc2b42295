"""Reader of large request bodies, from the socket directly into their final memory."""

import asyncio
from collections.abc import Callable
from typing import Final

from shoal_schema.wire.body import Body

READ_BYTES: Final = 16384
"""Most bytes of other input read at a time: of the next large body, little is read with its head and must be copied."""
# Shared by all connections: its bytes are copied out before the event loop reads again.
_INPUT: Final = memoryview(bytearray(READ_BYTES))


class BodyReader(asyncio.BufferedProtocol):
    """Protocol of a connection, which reads large bodies without a copy.

    While ``body`` is set, bytes are read into it. All other input is forwarded to ``owner``, including the start of a
    large body.

    Args:
        owner: HTTP protocol of the connection.
        on_more: called with the number of bytes read into ``body``; may unset ``body``.
        on_complete: called after the last byte of ``body``.
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
        """Forward the new connection to the owner (asyncio)."""
        self._owner.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes (asyncio)."""
        return _INPUT if self.body is None else self.body.rest

    def buffer_updated(self, nbytes: int) -> None:
        """Forward the read bytes to the owner, or count them as bytes of the body (asyncio)."""
        if self.body is None:
            self._owner.data_received(bytes(_INPUT[:nbytes]))
            return
        # The bytes are in place already: get_buffer returned the body's memory.
        self.body.filled(nbytes)
        self._on_more(nbytes)
        # `on_more` may have dropped the body.
        if self.body is not None and self.body.complete:
            self.body = None
            self._on_complete()

    def eof_received(self) -> bool | None:
        """Forward the end of the input to the owner (asyncio)."""
        return self._owner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forward the loss of the connection to the owner (asyncio)."""
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Forward the pause of writing to the owner (asyncio)."""
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        """Forward the end of the pause to the owner (asyncio)."""
        self._owner.resume_writing()
