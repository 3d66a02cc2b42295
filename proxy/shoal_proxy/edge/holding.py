"""Who may hold how many bytes of bodies that are not complete yet. Pure: times are arguments, in monotonic seconds.

A body counts as it arrives, not as it is announced. When there is no room for more bytes, one of those that hold more
than half an equal share gives way: the one that would hold its bytes longest at the pace at which it comes. A slow body
then costs nobody but its caller, a large one that is nearly here is not given up for one that has begun later, and who
holds little is never refused for another's sake. (Half, because with a whole share the oldest would often be the only
one above it: of large bodies that keep coming, none would ever be complete.)
"""

from math import inf

_WINDOW_S = 1.0
"""The pace is that of the last second or more, not of the whole body: one that stalls is slow, however quick it was."""


class Holding:
    """One body: what has come of it and how quickly. Subclassed by its owner, who is told to `give_way`."""

    __slots__ = ("expected_bytes", "held_bytes", "mark_bytes", "mark_s", "pace")

    def __init__(self) -> None:
        self.expected_bytes = 0
        """Of the whole body; the limit where the caller does not say."""
        self.held_bytes = 0
        self.mark_s = 0.0
        self.mark_bytes = 0
        self.pace = 0.0
        """Bytes a second until the mark."""

    def give_way(self) -> None:
        """Let go of everything."""
        raise NotImplementedError

    def arrived(self, size_bytes: int, now_s: float) -> None:
        """Note that so many more bytes are here."""
        self.held_bytes += size_bytes
        elapsed_s = now_s - self.mark_s
        if self.mark_s == 0.0:
            self.mark_s = now_s
        elif elapsed_s >= _WINDOW_S:
            self.pace = (self.held_bytes - self.mark_bytes) / elapsed_s
            self.mark_s, self.mark_bytes = now_s, self.held_bytes

    def wait_s(self, now_s: float) -> float:
        """Return how long the rest will take at the present pace."""
        rest_bytes = self.expected_bytes - self.held_bytes
        if rest_bytes <= 0:
            return 0.0
        # Until a whole window has passed the last one's pace counts, or, for a body that has just begun, what there is.
        elapsed_s = max(now_s - self.mark_s, 1e-3)
        recent = (self.held_bytes - self.mark_bytes) / elapsed_s
        pace = recent if elapsed_s >= _WINDOW_S else max(self.pace, recent)
        return rest_bytes / pace if pace > 0 else inf


class Bodies:
    """All bodies that are being read, within ``limit_bytes`` together with what waits in the queue."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._holdings: set[Holding] = set()
        self.size_bytes = 0

    def take(self, holding: Holding, size_bytes: int, waiting_bytes: int, now_s: float) -> bool:
        """Account for ``size_bytes`` more of a body, beside ``waiting_bytes`` in the queue; False: it is refused.

        One body alone may be larger than the limit, as one request in an empty queue may.
        """
        while not self._fits(size_bytes, waiting_bytes) and self._others_bytes(holding, waiting_bytes):
            loser = self._loser(holding, size_bytes, waiting_bytes, now_s)
            if loser is holding:
                return False
            self.release(loser)
            loser.give_way()
        holding.arrived(size_bytes, now_s)
        self.size_bytes += size_bytes
        self._holdings.add(holding)
        return True

    def release(self, holding: Holding) -> None:
        """Forget a body: it is the queue's to count now, or nobody's."""
        self._holdings.discard(holding)
        self.size_bytes -= holding.held_bytes
        holding.held_bytes = 0

    def shrink(self, holding: Holding, size_bytes: int) -> None:
        """Account for ``size_bytes`` less of a body: they were unpacked, and what came of them counts instead."""
        holding.held_bytes -= size_bytes
        self.size_bytes -= size_bytes

    def _others_bytes(self, holding: Holding, waiting_bytes: int) -> int:
        return self.size_bytes - holding.held_bytes + waiting_bytes

    def _fits(self, size_bytes: int, waiting_bytes: int) -> bool:
        return self.size_bytes + waiting_bytes + size_bytes <= self._limit_bytes

    def _loser(self, newest: Holding, size_bytes: int, waiting_bytes: int, now_s: float) -> Holding:
        """Return who gives way; ``newest``, which wants ``size_bytes`` more, where no other body can make the room."""
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
