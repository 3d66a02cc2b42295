"""Large bodies, read from the socket straight into the memory that they stay in.

A parser hands a body on in copies of copies: the event loop's chunk, the parser's slice of it, the joined whole. Once a
large body's length is known none of that is needed: the rest of it is so many bytes, whatever they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

LARGE_BYTES = 65536
"""From here on a body is worth a buffer of its own."""

_HEAD = memoryview(bytearray(8192))
"""One for all connections: what is read into it is taken out before the event loop reads again."""


class Body:
    """So many bytes of one body, not all of them here yet."""

    __slots__ = ("_filled_bytes", "view")

    def __init__(self, size_bytes: int) -> None:
        # Not a bytearray, which is zeroed first: memory that is never written, because its body never comes, is free.
        self.view = np.empty(size_bytes, np.uint8).data
        self._filled_bytes = 0

    @property
    def complete(self) -> bool:
        """Tell whether the last byte is here."""
        return self._filled_bytes == len(self.view)

    @property
    def rest(self) -> memoryview:
        """Return the part still to be filled."""
        return self.view[self._filled_bytes :]

    def filled(self, size_bytes: int) -> None:
        """Note that the first bytes of `rest` are here."""
        self._filled_bytes += size_bytes

    def add(self, chunk: bytes) -> None:
        """Copy a piece in."""
        end = self._filled_bytes + len(chunk)
        self.view[self._filled_bytes : end] = chunk
        self._filled_bytes = end


class BodyReader(asyncio.BufferedProtocol):
    """Stands between a connection that has sent a large body and its own protocol, ``owner``, from then on.

    It reads ``body`` while there is one; ``on_complete`` is called after its last byte. What else comes is the owner's,
    a little at a time: the next large body should not come halfway with its headers, to be copied out of there.
    """

    def __init__(self, owner: asyncio.Protocol, on_complete: Callable[[], None]) -> None:
        self._owner = owner
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
        if self.body.complete:
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
