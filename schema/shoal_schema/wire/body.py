"""Memory for large bodies, which are read from the socket straight to where they stay.

A parser hands a body on in copies of copies: the event loop's chunk, the parser's slice of it, the joined whole. Once a
large body's length is known none of that is needed: the rest of it is so many bytes, whatever they are.
"""

from typing import Final

import numpy as np

ALIGNMENT_BYTES: Final = 64


class Body:
    """So many bytes of one body, not all of them here yet.

    What is announced need not come, and memory of many megabytes comes from the kernel in pages of two: where the peer
    is not trusted, the whole of it is asked for once the first part is here.

    Args:
        size_bytes: of the whole body.
        first_bytes: as much of it as room is made for before any of it is here; None for all of it.
        aligned_at: where in it the tensors start, which are to be used in place; None if they are not.
    """

    __slots__ = ("_aligned_at", "_filled_bytes", "_room", "_size_bytes")

    def __init__(self, size_bytes: int, first_bytes: int | None = None, aligned_at: int | None = None) -> None:
        self._size_bytes = size_bytes
        self._aligned_at = aligned_at
        self._filled_bytes = 0
        self._room = self._memory(size_bytes if first_bytes is None else min(size_bytes, first_bytes))

    def _memory(self, size_bytes: int) -> memoryview:
        # Not a bytearray, which is zeroed first: memory that is never written, because its body never comes, is free.
        if self._aligned_at is None:
            return np.empty(size_bytes, np.uint8).data
        memory = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
        lead = -(memory.ctypes.data + self._aligned_at) % ALIGNMENT_BYTES
        return memory.data[lead : lead + size_bytes]

    @property
    def complete(self) -> bool:
        """Whether the last byte is here."""
        return self._filled_bytes == self._size_bytes

    @property
    def view(self) -> memoryview:
        """The whole body, once it is complete."""
        return self._room

    @property
    def rest(self) -> memoryview:
        """Room for what comes next; not always for all of it."""
        if self._filled_bytes == len(self._room) < self._size_bytes:
            first, self._room = self._room, self._memory(self._size_bytes)
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
