"""What a client has not read of a large response, given to its transport a piece at a time.

A transport keeps all that it was given until the last byte has left, and with TLS it counts none of it. So it gets one
piece at a time: what is kept for a client is known, and shrinks as the client reads.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

PIECE_BYTES: Final = 1 << 18
_PINNED: Final = 1.25
"""How much more memory than its own a part may keep before it is copied."""


class Outbox(asyncio.Transport):
    """Stands before a client's transport from its first large response on; closes it behind the last piece.

    Its owner sets ``blocked`` while the transport takes no more, and calls `feed` when it does again.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._parts: deque[memoryview] = deque()
        self._given_bytes = 0
        """Of the first part."""
        self._parts_bytes = 0
        self._closes = False
        self._ends = False
        self.blocked = False

    @property
    def left_bytes(self) -> int:
        """Return how many bytes the transport has not been given."""
        return self._parts_bytes - self._given_bytes

    @property
    def held_bytes(self) -> int:
        """Return how much memory that takes, with what the transport keeps: a part is let go of as a whole."""
        return self._parts_bytes + self._transport.get_write_buffer_size()

    def write(self, data: Any) -> None:
        """Send behind what is left (asyncio)."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send behind what is left (asyncio)."""
        for data in list_of_data:
            if len(data):
                view = memoryview(data)
                self._parts.append(view)
                self._parts_bytes += len(view)
        self.feed()

    def feed(self) -> None:
        """Give the transport as much as it takes, and end it behind the last piece if that was asked for."""
        while self._parts and not self.blocked:
            if self._transport.is_closing():
                self.drop()
                return
            self._transport.writelines(self._piece())
        if not self._parts:
            if self._ends:
                self._ends = False
                self._transport.write_eof()
            if self._closes:
                self._transport.close()

    def _piece(self) -> list[memoryview]:
        """Take the next piece."""
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
        return piece

    def own(self) -> None:
        """Copy what is left where it is part of something larger: one row must not keep its batch's other rows."""
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
        """Let go of what is left."""
        self._parts.clear()
        self._given_bytes = self._parts_bytes = 0

    def close(self) -> None:
        """Close behind what is left (asyncio)."""
        self._closes = True
        if not self._parts:
            self._transport.close()

    def abort(self) -> None:
        """Close at once (asyncio)."""
        self.drop()
        self._transport.abort()

    def write_eof(self) -> None:
        """End what is sent behind what is left (asyncio)."""
        if self._parts:
            self._ends = True
        else:
            self._transport.write_eof()

    def is_closing(self) -> bool:
        """Return whether it is closed, or is to be (asyncio)."""
        return self._closes or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are left, with those that the transport counts (asyncio)."""
        return self.left_bytes + self._transport.get_write_buffer_size()

    # All else is the transport's.

    def can_write_eof(self) -> bool:
        """Return whether only one half can be closed (asyncio)."""
        return self._transport.can_write_eof()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport knows (asyncio)."""
        return self._transport.get_extra_info(name, default)

    def is_reading(self) -> bool:
        """Return whether the transport reads (asyncio)."""
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        """Stop reading (asyncio)."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on (asyncio)."""
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol have what comes (asyncio)."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return who has what comes (asyncio)."""
        return self._transport.get_protocol()


def pinned_bytes(view: memoryview) -> int:
    """Return the size of what ``view`` is a part of, and keeps in memory."""
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
