"""Buffers into which large bodies are read directly from the socket.

A parser copies a body several times: the event loop's chunk, the parser's slice of it, the joined whole. If the length
is known, the rest of the body needs no parser.
"""

from typing import Final

import numpy as np

ALIGNMENT_BYTES: Final = 64


class Body:
    """The buffer of one body with a known length.

    An announced body may never arrive, and the kernel allocates large buffers in pages of 2 MiB. If the peer is not
    trusted, the whole buffer is allocated only after the first part has arrived.

    Args:
        size_bytes: size of the whole body.
        first_bytes: size of the initial buffer; None for the whole body.
        aligned_at: offset of the tensors, to align them for use in place; None without alignment.
    """

    __slots__ = ("_aligned_at", "_filled_bytes", "_room", "_size_bytes")

    def __init__(self, size_bytes: int, first_bytes: int | None = None, aligned_at: int | None = None) -> None:
        self._size_bytes = size_bytes
        self._aligned_at = aligned_at
        self._filled_bytes = 0
        self._room = self._memory(size_bytes if first_bytes is None else min(size_bytes, first_bytes))

    def _memory(self, size_bytes: int) -> memoryview:
        # Unlike a bytearray it is not zeroed, so memory of a body that never arrives is never committed.
        if self._aligned_at is None:
            return np.empty(size_bytes, np.uint8).data
        memory = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
        # numpy's own alignment may be smaller than 64 bytes.
        lead = -(memory.ctypes.data + self._aligned_at) % ALIGNMENT_BYTES
        return memory.data[lead : lead + size_bytes]

    @property
    def complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self._filled_bytes == self._size_bytes

    @property
    def view(self) -> memoryview:
        """The whole body, when complete."""
        return self._room

    @property
    def rest(self) -> memoryview:
        """The free part of the buffer, which may be smaller than the rest of the body."""
        # The first part is complete: allocate the rest now.
        if self._filled_bytes == len(self._room) < self._size_bytes:
            first, self._room = self._room, self._memory(self._size_bytes)
            self._room[: len(first)] = first
        return self._room[self._filled_bytes :]

    def filled(self, size_bytes: int) -> None:
        """Mark the first bytes of `rest` as filled."""
        self._filled_bytes += size_bytes

    def add(self, chunk: bytes) -> None:
        """Copy a chunk into the buffer."""
        start = 0
        while start < len(chunk):
            rest = self.rest
            size_bytes = min(len(rest), len(chunk) - start)
            rest[:size_bytes] = chunk[start : start + size_bytes]
            self._filled_bytes += size_bytes
            start += size_bytes
