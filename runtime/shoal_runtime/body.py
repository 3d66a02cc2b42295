"""Large bodies, read from the socket straight into the memory that the model computes on.

A parser hands a body on in copies of copies: the event loop's chunk, the parser's slice of it, the joined whole. Once a
large body's length is known none of that is needed: the rest of it is so many bytes, whatever they are.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

LARGE_BYTES: Final = 16384
ALIGNMENT_BYTES: Final = 64
BODY: Final = "shoal.body"
"""Where an ASGI scope has the `Body` of a request whose body is large, else None."""


class Body:
    """So many bytes of one body, not all of them here yet.

    Args:
        size_bytes: of the whole body.
        json_bytes: how many come before the tensors, which start aligned, to be used in place.
    """

    def __init__(self, size_bytes: int, json_bytes: int) -> None:
        memory = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
        lead = -(memory.ctypes.data + json_bytes) % ALIGNMENT_BYTES
        self.view = memory.data[lead : lead + size_bytes]
        self._filled_bytes = 0

    @property
    def complete(self) -> bool:
        """Whether the last byte is here."""
        return self._filled_bytes == len(self.view)

    @property
    def rest(self) -> memoryview:
        """The part still to be filled."""
        return self.view[self._filled_bytes :]

    def filled(self, size_bytes: int) -> None:
        """Note that the first bytes of `rest` are here."""
        self._filled_bytes += size_bytes

    def add(self, chunk: bytes) -> None:
        """Copy a piece in."""
        self.rest[: len(chunk)] = chunk
        self._filled_bytes += len(chunk)


def large_body(headers: Mapping[bytes, bytes], limit_bytes: int) -> Body | None:
    """Return room for the body that these headers announce, None when it is small or longer than `limit_bytes`."""
    size_bytes = int(headers.get(b"content-length", 0))
    if not LARGE_BYTES < size_bytes <= limit_bytes:
        return None
    json_bytes = headers.get(b"inference-header-content-length", b"")
    return Body(size_bytes, int(json_bytes) if json_bytes.isdigit() and len(json_bytes) < 16 else 0)


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
