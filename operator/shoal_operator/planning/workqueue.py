"""Which service is looked at next.

A key that is marked many times is looked at once; no two workers look at what has one name at a time, of whatever
kinds, as its objects are called by that, and a mark that arrives meanwhile makes it due again afterwards. A failure
is tried again after 1, 2, 4, ... 60 s; a success after the resync period, or after seconds where something waits.
"""

import heapq
from dataclasses import dataclass, field
from enum import StrEnum

from shoal_operator.planning.observation import Key

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
WAIT_S = 5.0
_JITTER = 0.2


class Outcome(StrEnum):
    """How one look at a service ended."""

    DONE = "done"
    WAITING = "waiting"
    """What must be done has its time in some seconds."""
    FAILED = "failed"
    GONE = "gone"


@dataclass(slots=True)
class WorkQueue:
    """Keys and the times at which they are due.

    Args:
        resync_s: look again after this long even if nothing was heard.
    """

    resync_s: float
    _due: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, Key]] = field(default_factory=list)
    _running: dict[tuple[str, str], float] = field(default_factory=dict)
    """By namespace and name, since when."""
    _failures: dict[Key, int] = field(default_factory=dict)

    def mark(self, key: Key, due_s: float) -> None:
        """Make a key due at this time, or earlier when it already is."""
        if key not in self._due or due_s < self._due[key]:
            self._due[key] = due_s
            heapq.heappush(self._heap, (due_s, key))

    def take(self, now_s: float) -> Key | None:
        """Return a key that is due and whose name no worker holds; it is the caller's until finished."""
        while self._heap and self._heap[0][0] <= now_s:
            due_s, key = heapq.heappop(self._heap)
            if self._due.get(key) != due_s or key.place in self._running:
                continue  # marked earlier since, taken since, or finish() will bring it back
            del self._due[key]
            self._running[key.place] = now_s
            return key
        return None

    def finish(self, key: Key, outcome: Outcome, now_s: float, *, jitter: float) -> None:
        """Give a key back.

        Args:
            key: what ``take`` returned.
            outcome: decides when it is due again.
            now_s: monotonic time (s).
            jitter: a random number in [0, 1) that spreads retries and resyncs.
        """
        del self._running[key.place]
        waiting_s = self._due.pop(key, None)
        delay_s = self._delay_s(key, outcome, jitter)
        if waiting_s is not None:
            self.mark(key, waiting_s)
        if delay_s is not None:
            self.mark(key, now_s + delay_s)
        for other in key.namesakes:
            if other in self._due:
                heapq.heappush(self._heap, (self._due[other], other))

    def next_due_s(self) -> float | None:
        """Return when the next key is due, or None when all keys are taken."""
        while self._heap:
            due_s, key = self._heap[0]
            if self._due.get(key) == due_s and key.place not in self._running:
                return due_s
            heapq.heappop(self._heap)
        return None

    def due_since_s(self, now_s: float) -> list[float]:
        """Return since when those have been due that are, and that no worker holds."""
        return [due_s for key, due_s in self._due.items() if due_s <= now_s and key.place not in self._running]

    def oldest_running_s(self) -> float | None:
        """Return when the longest look that is still running began."""
        return min(self._running.values(), default=None)

    def waiting(self) -> tuple[Key, ...]:
        """Return the keys that wait for their time: all, but those that are being looked at."""
        return tuple(self._due)

    def __len__(self) -> int:
        return len(self._due)

    def _delay_s(self, key: Key, outcome: Outcome, jitter: float) -> float | None:
        if outcome is Outcome.FAILED:
            self._failures[key] = failures = self._failures.get(key, 0) + 1
            delay_s = min(MIN_RETRY_S * 2.0 ** (failures - 1), MAX_RETRY_S)
            return max(MIN_RETRY_S, delay_s * (1 - _JITTER * jitter))
        self._failures.pop(key, None)
        if outcome is Outcome.WAITING:
            return WAIT_S
        return None if outcome is Outcome.GONE else self.resync_s * (1 - _JITTER * jitter)
