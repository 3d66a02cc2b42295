"""Large responses, passed to the transport a piece at a time.

A transport keeps all data until the last byte is sent, and with TLS does not count this data. If data is passed in
pieces, the memory kept for a client is known, and shrinks as the client reads.

Each result row is a view of the buffer of a whole batch. A transport that keeps a piece of a row keeps this buffer. So
a large response is written directly to the socket, without a copy, while the kernel accepts it. The transport gets
copies of the rest.
"""

import asyncio
import os
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

import numpy as np

PIECE_BYTES: Final = 1 << 18
_PINNED: Final = 1.25
"""A part that keeps more than this multiple of its size in memory is copied."""
_DIRECT_BYTES: Final = 65536
"""Less data is left to the transport, which sends the writes of one turn of the event loop together."""
_DIRECT_PARTS: Final = 64
"""Most parts of one system call."""


class Outbox(asyncio.Transport):
    """Transport that buffers large responses before a client's transport.

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
        # A TLS transport encrypts at once, and keeps only the result.
        self._is_plain = transport.get_extra_info("sslcontext") is None
        sock: Any = transport.get_extra_info("socket") if self._is_plain else None
        self._descriptor: int = -1 if sock is None else sock.fileno()

    @property
    def unread_bytes(self) -> int:
        """Return the bytes that were not passed to the client's transport yet."""
        return self._parts_bytes - self._given_bytes

    @property
    def held_bytes(self) -> int:
        """Return the memory (bytes) in use here and in the client's transport."""
        return self._parts_bytes + self._transport.get_write_buffer_size()

    def write(self, data: Any) -> None:
        """Append data to the remaining data (asyncio)."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Append several pieces to the remaining data (asyncio)."""
        for data in list_of_data:
            if len(data):
                view = memoryview(data)
                self._parts.append(view)
                self._parts_bytes += len(view)
        self.feed()

    def feed(self) -> None:
        """Pass data to the transport until it is paused; then close if requested."""
        while self._parts and not self.blocked:
            if self._transport.is_closing():
                self.drop()
                return
            # The transport's own data is sent first.
            if (
                self._descriptor >= 0
                and self.unread_bytes > _DIRECT_BYTES
                and not self._transport.get_write_buffer_size()
            ):
                self._send()
            if self._parts:
                self._transport.writelines(self._next_piece())
        if not self._parts:
            if self._ends:
                self._ends = False
                self._transport.write_eof()
            if self._closes:
                self._transport.close()

    def _send(self) -> None:
        """Write to the socket as much as the kernel accepts now."""
        wanted_bytes = sent_bytes = 0
        while self._parts and sent_bytes == wanted_bytes:
            buffers: list[memoryview] = []
            wanted_bytes, start = 0, self._given_bytes
            for part in islice(self._parts, _DIRECT_PARTS):
                buffers.append(part[start : start + PIECE_BYTES - wanted_bytes])
                wanted_bytes += len(buffers[-1])
                start = 0
                if wanted_bytes == PIECE_BYTES:
                    break
            try:
                sent_bytes = os.writev(self._descriptor, buffers)
            except OSError:  # no room, or an error that the transport will get and report
                return
            left_bytes = sent_bytes
            while left_bytes:
                part = self._parts[0]
                taken_bytes = min(left_bytes, len(part) - self._given_bytes)
                self._advance(part, taken_bytes)
                left_bytes -= taken_bytes

    def _next_piece(self) -> list[memoryview]:
        """Remove and return the next piece; copy it if it pins larger memory."""
        piece: list[memoryview] = []
        room_bytes = PIECE_BYTES
        while self._parts and room_bytes:
            part, start = self._parts[0], self._given_bytes
            taken = part[start : start + room_bytes]
            self._advance(part, len(taken))
            room_bytes -= len(taken)
            if self._is_plain and pinned_bytes(part) > max(PIECE_BYTES, _PINNED * len(taken)):
                taken = memoryview(bytes(taken))
            piece.append(taken)
        return piece

    def _advance(self, part: memoryview, size_bytes: int) -> None:
        """Remove ``size_bytes`` from the front of the first part."""
        self._given_bytes += size_bytes
        if self._given_bytes == len(part):
            self._parts.popleft()
            self._parts_bytes -= len(part)
            self._given_bytes = 0

    def own(self) -> None:
        """Copy unsent parts that keep a larger buffer, such as a whole batch."""
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
        """Drop all data that was not passed to the transport."""
        self._parts.clear()
        self._given_bytes = self._parts_bytes = 0

    def close(self) -> None:
        """Close the transport after all remaining data is sent (asyncio)."""
        self._closes = True
        if not self._parts:
            self._transport.close()

    def abort(self) -> None:
        """Close the transport at once, without the remaining data (asyncio)."""
        self.drop()
        self._transport.abort()

    def write_eof(self) -> None:
        """Close the sending side after the remaining data (asyncio)."""
        if self._parts:
            self._ends = True
        else:
            self._transport.write_eof()

    def is_closing(self) -> bool:
        """Return whether the transport is closed or closing (asyncio)."""
        return self._closes or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return the remaining bytes, including the transport's buffer (asyncio)."""
        return self.unread_bytes + self._transport.get_write_buffer_size()

    # The other methods only delegate to the transport.

    def can_write_eof(self) -> bool:
        """Return whether the sending side can be closed on its own (asyncio)."""
        return self._transport.can_write_eof()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the client's transport (asyncio)."""
        return self._transport.get_extra_info(name, default)

    def is_reading(self) -> bool:
        """Return whether the client's transport is reading (asyncio)."""
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        """Pause reading from the client (asyncio)."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading from the client (asyncio)."""
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol of the client's transport (asyncio)."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol of the client's transport (asyncio)."""
        return self._transport.get_protocol()


def pinned_bytes(view: memoryview) -> int:
    """Return the size of the buffer that ``view`` keeps in memory."""
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
