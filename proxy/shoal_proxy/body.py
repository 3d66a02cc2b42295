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


class Body:
    """So many bytes of one body, not all of them here yet."""

    __slots__ = ("_filled_bytes", "view")

    def __init__(self, size_bytes: int) -> None:
        # Not a bytearray, which is zeroed first: memory that is never written, because its body never comes, is free.
        self.view = memoryview(np.empty(size_bytes, np.uint8))
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
    """Stands in for a connection's own protocol until a body is complete; then ``on_complete`` puts that one back."""

    def __init__(self, body: Body, owner: asyncio.Protocol, on_complete: Callable[[], None]) -> None:
        self._body = body
        self._owner = owner
        self._on_complete = on_complete

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go (asyncio)."""
        return self._body.rest

    def buffer_updated(self, nbytes: int) -> None:
        """Note what has come (asyncio)."""
        self._body.filled(nbytes)
        if self._body.complete:
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
