"""Large request bodies, read from the socket into their final memory."""

import asyncio
from collections.abc import Callable
from typing import Final

from shoal_schema.wire.body import Body

LARGE_BYTES: Final = 65536
"""The size from which a body gets its own buffer."""
FIRST_BYTES: Final = 1 << 20
"""Most bytes allocated for a body before any of it has arrived."""
_HEAD = memoryview(bytearray(8192))
"""Shared by all connections: its contents are copied out before the event loop reads again."""


class BodyReader(asyncio.BufferedProtocol):
    """Protocol of a connection, which reads large bodies without a copy.

    Replaces ``owner`` at the transport from the connection's first large body on. While ``body`` is set, bytes are read
    into it: ``on_more`` is called with their number and may unset ``body``, ``on_complete`` is called after the last
    byte. Other input goes to ``owner``, at most 8 KiB at a time, so that little of the next large body is read with its
    headers and must be copied.
    """

    def __init__(
        self, owner: asyncio.Protocol, on_more: Callable[[int], None], on_complete: Callable[[], None]
    ) -> None:
        self._owner = owner
        self._on_more = on_more
        self._on_complete = on_complete
        self.body: Body | None = None

    # The asyncio.BufferedProtocol interface.
    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes (asyncio)."""
        return _HEAD if self.body is None else self.body.rest

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read (asyncio)."""
        if self.body is None:
            # Copied, as the buffer is shared.
            self._owner.data_received(bytes(_HEAD[:nbytes]))
            return
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
