"""How many bytes of responses wait for their clients to read them, and whose connection ends when there are too many.

Beyond the limit no batch is sent and no result is encoded (`full`), so nothing is added while honest clients read. A
client that reads too slowly to be done in time gives way then, the slowest first, and none before it had a while to
begin: without this, those that read nothing would keep all others waiting until their own time-outs.
"""

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

LOOK_S: Final = 0.25
WINDOW_S: Final = 1.0
"""A pace is that of a window or more: nobody is slow before."""
_BATCH_PART: Final = 4
"""Of the limit, the results of one batch take at most one part in so many: those that wait come on top."""
_ENDLESS_BYTES: Final = 1 << 62


class SlowReader(Protocol):
    """A connection whose client has not read all of its response."""

    @property
    def left_bytes(self) -> int:
        """Return how many bytes it has not taken."""

    def give_way(self) -> None:
        """End the connection: what is kept for it is let go of."""


class Pace:
    """How quickly one client reads. Pure: times are arguments, in monotonic seconds."""

    __slots__ = ("bytes_per_s", "held_bytes", "mark_bytes", "mark_s")

    def __init__(self) -> None:
        self.held_bytes = 0
        """Memory that is kept for it."""
        self.mark_bytes = 0
        self.mark_s = 0.0
        """When its first window began; 0 before it was looked at."""
        self.bytes_per_s = inf
        """In the last window; before the first has passed it counts as quick."""

    def look(self, left_bytes: int, now_s: float) -> None:
        """Note how much is left."""
        elapsed_s = now_s - self.mark_s
        if self.mark_s == 0.0:
            self.mark_bytes, self.mark_s = left_bytes, now_s
        elif elapsed_s >= WINDOW_S:
            self.bytes_per_s = max(0, self.mark_bytes - left_bytes) / elapsed_s
            self.mark_bytes, self.mark_s = left_bytes, now_s

    def needs_s(self, left_bytes: int) -> float:
        """Return how long the rest takes."""
        if self.bytes_per_s == inf:
            return 0.0
        return left_bytes / self.bytes_per_s if self.bytes_per_s else inf


class Unsent:
    """What all clients of one port have not read, within ``limit_bytes``.

    Args:
        limit_bytes: beyond which it is `full`. One response is written whatever its size when it is not.
        patience_s: how long a client may need for the rest of its response, at its pace, while it is full.
    """

    def __init__(self, limit_bytes: int = _ENDLESS_BYTES, patience_s: float = inf) -> None:
        self._limit_bytes = limit_bytes
        self._patience_s = patience_s
        self._readers: dict[SlowReader, Pace] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._looks = False
        self.size_bytes = 0
        self.full = False
        self.on_room: Callable[[], None] = _nothing

    def note(self, reader: SlowReader, held_bytes: int) -> None:
        """Count what is kept for a client now, in bytes; 0 when it has read everything, or has gone."""
        pace = self._readers.get(reader)
        if pace is None:
            if not held_bytes:
                return
            pace = self._readers[reader] = Pace()
        self.size_bytes += held_bytes - pace.held_bytes
        pace.held_bytes = held_bytes
        if not held_bytes:
            del self._readers[reader]
        if self.full != (self.size_bytes > self._limit_bytes):
            self._turn(full=not self.full)

    def rows(self, row_bytes: int) -> int:
        """Return how many rows a batch may have whose results take ``row_bytes`` each."""
        return max(1, self._limit_bytes // _BATCH_PART // max(1, row_bytes))

    async def room(self) -> None:
        """Return when it is not full; whoever waited longest goes on first, if there is still room then."""
        while self.full:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def _turn(self, *, full: bool) -> None:
        self.full = full
        if full:
            self._look_later()
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        self.on_room()

    def _look_later(self) -> None:
        if not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """While it is full: end the connections of the slowest, until it is not."""
        self._looks = False
        if not self.full:
            return
        now_s = time.monotonic()
        for reader, pace in self._readers.items():
            pace.look(reader.left_bytes, now_s)
        for reader in self._too_slow():
            self.note(reader, 0)
            reader.give_way()
            if not self.full:
                return
        self._look_later()

    def _too_slow(self) -> list[SlowReader]:
        """Return who may have to give way, the slowest first.

        A client that holds at most half an equal share never does, as with bodies (`Bodies`).
        """
        little_bytes = self._limit_bytes / 2 / len(self._readers)
        found = [
            (needs_s, number, reader)
            for number, (reader, pace) in enumerate(self._readers.items())
            if pace.held_bytes > little_bytes and (needs_s := pace.needs_s(reader.left_bytes)) > self._patience_s
        ]
        found.sort(reverse=True)
        return [reader for _, _, reader in found]


def _nothing() -> None:
    """Stand in for who waits for room."""
