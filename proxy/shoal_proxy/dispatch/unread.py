"""Memory limit of unread responses, enforced by evicting slow readers.

While the limit is exceeded (`full`), no batch is sent and no result is encoded, so unread bytes cannot grow. Clients
that are too slow to finish in time are disconnected, the slowest first, until half of the limit is free. Otherwise
clients that read nothing would block all other clients until their timeouts. The pace of a client is measured for at
least one window before the client is disconnected. Measurements start at half of the limit.
"""

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

CHECK_S: Final = 0.25
"""The interval of checks while more than `_LOW_PART` of the limit is in use."""
_LOW_PART: Final = 0.5
"""The part of the limit down to which slow readers are disconnected, once it is exceeded."""
WINDOW_S: Final = 1.0
"""A client's pace is measured over this time or more; before, it does not count as slow."""
_BATCH_PART: Final = 4
"""The results of one batch take at most this part of the limit, as results of other batches may be unread too."""
_ENDLESS_BYTES: Final = 1 << 62


class SlowReader(Protocol):
    """Connection whose client has not read all of its response."""

    @property
    def unread_bytes(self) -> int:
        """Return the number of response bytes that the client has not read."""

    def evict(self) -> None:
        """Close the connection and free its memory."""


class ReadingPace:
    """Reading pace of one client; times are in monotonic seconds."""

    __slots__ = ("bytes_per_s", "held_bytes", "mark_bytes", "mark_s")

    def __init__(self) -> None:
        self.held_bytes = 0
        """Memory kept for the client."""
        self.mark_bytes = 0
        self.mark_s = 0.0
        """When the present window began; 0 before the first one."""
        self.bytes_per_s = inf
        """Pace in the last window; infinite before the first one ends."""

    def measure(self, left_bytes: int, now_s: float) -> None:
        """Update the pace at which the client reads.

        ``left_bytes`` is the number of response bytes that are unread now.
        """
        elapsed_s = now_s - self.mark_s
        if self.mark_s == 0.0:
            self.mark_bytes, self.mark_s = left_bytes, now_s
        elif elapsed_s >= WINDOW_S:
            self.bytes_per_s = max(0, self.mark_bytes - left_bytes) / elapsed_s
            self.mark_bytes, self.mark_s = left_bytes, now_s

    def needs_s(self, left_bytes: int) -> float:
        """Return the time (s) to read ``left_bytes`` at the measured pace."""
        if self.bytes_per_s == inf:
            return 0.0
        return left_bytes / self.bytes_per_s if self.bytes_per_s else inf


class UnreadResponses:
    """Memory account of the unread responses of all clients.

    Args:
        limit_bytes: memory limit. While it is not reached, a response of any size is written.
        patience_s: time that a client may need for the rest of its response while the limit is reached.
    """

    def __init__(self, limit_bytes: int = _ENDLESS_BYTES, patience_s: float = inf) -> None:
        self._limit_bytes = limit_bytes
        self._low_bytes = int(limit_bytes * _LOW_PART)
        self._patience_s = patience_s
        self._readers: dict[SlowReader, ReadingPace] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._check_scheduled = False
        self.size_bytes = 0
        self.full = False
        self.on_room: Callable[[], None] = lambda: None
        """Called when the unread responses are no longer full."""

    def set_held_bytes(self, reader: SlowReader, held_bytes: int) -> None:
        """Set the memory (bytes) that a client's unread response occupies.

        0 removes the client from the account.
        """
        pace = self._readers.get(reader)
        if pace is None:
            if not held_bytes:
                return
            pace = self._readers[reader] = ReadingPace()
        self.size_bytes += held_bytes - pace.held_bytes
        pace.held_bytes = held_bytes
        if not held_bytes:
            del self._readers[reader]
        if self.size_bytes > self._low_bytes:
            self._check_later()
        if self.full == (self.size_bytes > self._limit_bytes):
            return
        self.full = not self.full
        if self.full:
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        self.on_room()

    def rows(self, row_bytes: int) -> int:
        """Return the row limit of a batch with ``row_bytes`` per result row."""
        return max(1, self._limit_bytes // _BATCH_PART // max(1, row_bytes))

    async def wait_for_room(self) -> None:
        """Wait until the limit is no longer exceeded."""
        while self.full:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def _check_later(self) -> None:
        if not self._check_scheduled:
            self._check_scheduled = True
            asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        """Measure all paces; when full, evict the slowest readers until half full."""
        self._check_scheduled = False
        if self.size_bytes <= self._low_bytes:
            return
        self._check_later()
        now_s = time.monotonic()
        for reader, pace in self._readers.items():
            pace.measure(reader.unread_bytes, now_s)
        if not self.full:
            return
        # A client with at most half an equal share is never disconnected, as with request bodies (`Bodies`).
        little_bytes = self._limit_bytes / 2 / len(self._readers)
        slow = [
            (needs_s, number, reader)
            for number, (reader, pace) in enumerate(self._readers.items())
            if pace.held_bytes > little_bytes and (needs_s := pace.needs_s(reader.unread_bytes)) > self._patience_s
        ]
        # The slowest first; of those that read nothing, the one that has done so for longest.
        for _, _, reader in sorted(slow, key=lambda each: (-each[0], each[1])):
            if self.size_bytes <= self._low_bytes:
                return
            self.set_held_bytes(reader, 0)
            reader.evict()
