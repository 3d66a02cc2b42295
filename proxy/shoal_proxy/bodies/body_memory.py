"""The memory limit of incomplete request bodies. Pure: times are arguments, in monotonic seconds.

A body counts by its received bytes, not by its announced length. When the limit is reached, one body that holds more
than half an equal share is rejected: the body with the longest remaining time at its current rate. So a slow body
affects only its own client, a nearly complete large body is preferred to a later one, and a small body is never
rejected in favor of another. (With a whole share as the threshold, often only the oldest body would exceed it, and in a
steady flow of large bodies none would complete.)
"""

from collections.abc import Callable
from math import inf

_WINDOW_S = 1.0
"""The pace is measured over the last second or more, so that a body that stalls counts as slow at once."""


class BodyTransfer:
    """The received bytes and the rate of one incomplete body. Subclasses implement `evict`."""

    __slots__ = ("expected_bytes", "held_bytes", "mark_bytes", "mark_s", "pace")

    def __init__(self) -> None:
        self.expected_bytes = 0
        """Size of the whole body; the size limit where the client announces none."""
        self.held_bytes = 0
        self.mark_s = 0.0
        self.mark_bytes = 0
        self.pace = 0.0
        """Bytes per second in the window before the mark."""

    def evict(self) -> None:
        """Drop the body and reject its request."""
        raise NotImplementedError

    def arrived(self, size_bytes: int, now_s: float) -> None:
        """Add received bytes to the transfer."""
        self.held_bytes += size_bytes
        elapsed_s = now_s - self.mark_s
        if self.mark_s == 0.0:
            self.mark_s = now_s
        elif elapsed_s >= _WINDOW_S:
            self.pace = (self.held_bytes - self.mark_bytes) / elapsed_s
            # The next window begins.
            self.mark_s, self.mark_bytes = now_s, self.held_bytes

    def wait_s(self, now_s: float) -> float:
        """Return the time (s) until the body is complete at its current rate."""
        rest_bytes = self.expected_bytes - self.held_bytes
        if rest_bytes <= 0:
            return 0.0
        # Before the window ends, the previous window's pace counts; a new body has only the present one.
        elapsed_s = max(now_s - self.mark_s, 1e-3)
        recent = (self.held_bytes - self.mark_bytes) / elapsed_s
        pace = recent if elapsed_s >= _WINDOW_S else max(self.pace, recent)
        return rest_bytes / pace if pace > 0 else inf


class DelegatedTransfer(BodyTransfer):
    """A transfer whose `evict` calls a function.

    Used by modules that are not compiled, which cannot subclass a compiled class.
    """

    __slots__ = ("_evict",)

    def __init__(self, evict: Callable[[], None]) -> None:
        super().__init__()
        self._evict = evict

    def evict(self) -> None:
        """Drop the body and reject its request."""
        self._evict()


class BodyMemory:
    """Memory account of all incomplete bodies.

    Incomplete bodies and the queue share one limit, ``limit_bytes``.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._holdings: set[BodyTransfer] = set()
        self.size_bytes = 0

    def reserve(self, holding: BodyTransfer, size_bytes: int, waiting_bytes: int, now_s: float) -> bool:
        """Reserve ``size_bytes`` for a body; return False if the body is rejected.

        ``waiting_bytes`` is the size of the queue. A single body may exceed the limit, like a single request in an
        empty queue.
        """
        while self.size_bytes + waiting_bytes + size_bytes > self._limit_bytes:
            if self.size_bytes - holding.held_bytes + waiting_bytes == 0:
                break
            loser = self._body_to_reject(holding, size_bytes, waiting_bytes, now_s)
            if loser is holding:
                return False
            self.release(loser)
            loser.evict()
        holding.arrived(size_bytes, now_s)
        self.size_bytes += size_bytes
        self._holdings.add(holding)
        return True

    def release(self, holding: BodyTransfer) -> None:
        """Remove a body that was queued or dropped."""
        self._holdings.discard(holding)
        self.size_bytes -= holding.held_bytes
        holding.held_bytes = 0

    def shrink(self, holding: BodyTransfer, size_bytes: int) -> None:
        """Release ``size_bytes`` compressed bytes of a body after decompression."""
        holding.held_bytes -= size_bytes
        self.size_bytes -= size_bytes

    def _body_to_reject(self, newest: BodyTransfer, size_bytes: int, waiting_bytes: int, now_s: float) -> BodyTransfer:
        """Return the body to reject in favor of ``newest``, or ``newest`` itself."""
        room_bytes = self._limit_bytes - waiting_bytes
        if size_bytes > room_bytes:
            return newest
        little_bytes = room_bytes / 2 / (len(self._holdings) + (newest not in self._holdings))
        loser = newest
        worst = (-1.0, 0)
        for each in self._holdings | {newest}:
            held_bytes = each.held_bytes + (size_bytes if each is newest else 0)
            if held_bytes > little_bytes:
                badness = (each.wait_s(now_s), held_bytes)
                if badness > worst:
                    loser, worst = each, badness
        return loser
