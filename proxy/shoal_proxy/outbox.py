"""The unread part of a large response, passed to the transport a piece at a time.

A transport keeps a whole buffer until its last byte is sent, and a TLS transport does not count the buffered bytes.
Passed in pieces, the memory held for a client is known, and shrinks as the client reads.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

PIECE_BYTES: Final = 1 << 18
_PINNED: Final = 1.25
"""A part that keeps more than this multiple of its size in memory is copied."""


class Outbox(asyncio.Transport):
    """Wraps a client's transport from its first large response on; closes it after the last piece.

    The owner sets ``blocked`` while the transport's writing is paused, and calls `feed` when it resumes.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._parts: deque[memoryview] = deque()
        self._given_bytes = 0
        """Bytes of the first part that were passed to the transport."""
        self._parts_bytes = 0
        self._closes = False
        self._ends = False
        self.blocked = False

    @property
    def unread_bytes(self) -> int:
        """Return the bytes not passed to the transport yet."""
        return self._parts_bytes - self._given_bytes

    @property
    def held_bytes(self) -> int:
        """Return the memory in use, with the transport's buffer; a part is freed as a whole."""
        return self._parts_bytes + self._transport.get_write_buffer_size()

    def write(self, data: Any) -> None:
        """Send after the remaining data (asyncio)."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send after the remaining data (asyncio)."""
        for data in list_of_data:
            if len(data):
                view = memoryview(data)
                self._parts.append(view)
                self._parts_bytes += len(view)
        self.feed()

    def feed(self) -> None:
        """Pass pieces until the transport's writing is paused; after the last one, end or close it if requested."""
        while self._parts and not self.blocked:
            if self._transport.is_closing():
                self.drop()
                return
            piece: list[memoryview] = []
            room_bytes = PIECE_BYTES
            while self._parts and room_bytes:
                part, start = self._parts[0], self._given_bytes
                taken = part[start : start + room_bytes]
                piece.append(taken)
                room_bytes -= len(taken)
                self._given_bytes += len(taken)
                if self._given_bytes == len(part):
                    self._parts.popleft()
                    self._parts_bytes -= len(part)
                    self._given_bytes = 0
            self._transport.writelines(piece)
        if not self._parts:
            if self._ends:
                self._ends = False
                self._transport.write_eof()
            if self._closes:
                self._transport.close()

    def own(self) -> None:
        """Copy remaining parts that are views of larger memory, so that one row does not keep its whole batch."""
        if not any(pinned_bytes(part) > _PINNED * len(part) for part in self._parts):
            return
        parts, start = self._parts, self._given_bytes
        self._parts, self._given_bytes, self._parts_bytes = deque(), 0, 0
        for part in parts:
            for at in range(start, len(part), PIECE_BYTES):
                copy = memoryview(bytes(part[at : at + PIECE_BYTES]))
                self._parts.append(copy)
                self._parts_bytes += len(copy)
            start = 0

    def drop(self) -> None:
        """Drop the remaining data."""
        self._parts.clear()
        self._given_bytes = self._parts_bytes = 0

    def close(self) -> None:
        """Close after the remaining data (asyncio)."""
        self._closes = True
        if not self._parts:
            self._transport.close()

    def abort(self) -> None:
        """Close at once (asyncio)."""
        self.drop()
        self._transport.abort()

    def write_eof(self) -> None:
        """Close the sending side after the remaining data (asyncio)."""
        if self._parts:
            self._ends = True
        else:
            self._transport.write_eof()

    def is_closing(self) -> bool:
        """Return whether it is closed, or closing (asyncio)."""
        return self._closes or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return the remaining bytes, with the transport's buffer (asyncio)."""
        return self.unread_bytes + self._transport.get_write_buffer_size()

    # The other methods only delegate to the transport.

    def can_write_eof(self) -> bool:
        """Return whether the sending side can be closed alone (asyncio)."""
        return self._transport.can_write_eof()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the transport (asyncio)."""
        return self._transport.get_extra_info(name, default)

    def is_reading(self) -> bool:
        """Return whether the transport reads (asyncio)."""
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        """Stop reading (asyncio)."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading (asyncio)."""
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol (asyncio)."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol (asyncio)."""
        return self._transport.get_protocol()


def pinned_bytes(view: memoryview) -> int:
    """Return the size of the memory block that ``view`` keeps alive."""
    owner: Any = view
    while True:
        if isinstance(owner, memoryview):
            owner = owner.obj
        elif isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        else:
            break
    if isinstance(owner, np.ndarray):
        return owner.nbytes
    return len(owner) if isinstance(owner, bytes | bytearray) else len(view)
