"""Large bodies, read from the socket straight into the memory that they stay in.

A parser hands a body on in copies of copies: the event loop's chunk, the parser's slice of it, the joined whole. Once a
large body's length is known none of that is needed: the rest of it is so many bytes, whatever they are.
"""

import asyncio
from collections.abc import Callable

import numpy as np

LARGE_BYTES = 65536
"""From here on a body is worth a buffer of its own."""

FIRST_BYTES = 1 << 20
"""As much of a body as room is made for before any of it is here."""

_HEAD = memoryview(bytearray(8192))
"""One for all connections: what is read into it is taken out before the event loop reads again."""


class Body:
    """So many bytes of one body, not all of them here yet.

    What is announced need not come, and memory of many megabytes comes from the kernel in pages of two: the whole of it
    is asked for once the first megabyte is here.
    """

    __slots__ = ("_filled_bytes", "_room", "_size_bytes")

    def __init__(self, size_bytes: int, first_bytes: int = FIRST_BYTES) -> None:
        self._size_bytes = size_bytes
        # Not a bytearray, which is zeroed first: memory that is never written, because its body never comes, is free.
        self._room = np.empty(min(size_bytes, first_bytes), np.uint8).data
        self._filled_bytes = 0

    @property
    def complete(self) -> bool:
        """Tell whether the last byte is here."""
        return self._filled_bytes == self._size_bytes

    @property
    def view(self) -> memoryview:
        """Return the whole body, once it is complete."""
        return self._room

    @property
    def rest(self) -> memoryview:
        """Return room for what comes next; not always for all of it."""
        if self._filled_bytes == len(self._room) < self._size_bytes:
            first, self._room = self._room, np.empty(self._size_bytes, np.uint8).data
            self._room[: len(first)] = first
        return self._room[self._filled_bytes :]

    def filled(self, size_bytes: int) -> None:
        """Note that the first bytes of `rest` are here."""
        self._filled_bytes += size_bytes

    def add(self, chunk: bytes) -> None:
        """Copy a piece in."""
        start = 0
        while start < len(chunk):
            rest = self.rest
            size_bytes = min(len(rest), len(chunk) - start)
            rest[:size_bytes] = chunk[start : start + size_bytes]
            self._filled_bytes += size_bytes
            start += size_bytes


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
