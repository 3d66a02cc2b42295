"""Large bodies, read from the socket straight into the memory that they stay in."""

import asyncio
from collections.abc import Callable
from typing import Final

from shoal_schema.wire.body import Body

LARGE_BYTES: Final = 65536
"""From here on a body is worth a buffer of its own."""
FIRST_BYTES: Final = 1 << 20
"""As much of a body as room is made for before any of it is here."""
_HEAD = memoryview(bytearray(8192))
"""One for all connections: what is read into it is taken out before the event loop reads again."""


class BodyReader(asyncio.BufferedProtocol):
    """Stands between a connection that has sent a large body and its own protocol, ``owner``, from then on.

    It reads ``body`` while there is one; ``on_more`` is told how many bytes of it have come, and may take it away;
    ``on_complete`` is called after its last byte. What else comes is the owner's,
    a little at a time: the next large body should not come halfway with its headers, to be copied out of there.
    """

    def __init__(
        self, owner: asyncio.Protocol, on_more: Callable[[int], None], on_complete: Callable[[], None]
    ) -> None:
        self._owner = owner
        self._on_more = on_more
        self._on_complete = on_complete
        self.body: Body | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go (asyncio)."""
        return _HEAD if self.body is None else self.body.rest

    def buffer_updated(self, nbytes: int) -> None:
        """Note what has come (asyncio)."""
        if self.body is None:
            self._owner.data_received(bytes(_HEAD[:nbytes]))
            return
        self.body.filled(nbytes)
        self._on_more(nbytes)
        if self.body is not None and self.body.complete:
            self.body = None
            self._on_complete()

    def eof_received(self) -> bool | None:
        """Pass on (asyncio)."""
        return self._owner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on (asyncio)."""
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on (asyncio)."""
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on (asyncio)."""
        self._owner.resume_writing()
