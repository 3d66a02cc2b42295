"""The queue of services to reconcile.

A key that is marked many times is reconciled once. Two workers never reconcile keys with the same name, of any kind, at
the same time, because they share the names of objects. A mark during a reconciliation makes the key due again. A
failure is retried after 1, 2, 4, ... 60 s. A success is repeated after the resync period, or after seconds if it waits
for an object.

Of several keys that are due, those with a changed spec come first: each step of a lower `Priority` counts as `AGE_S`
later, so no key waits forever. A rollout causes hundreds of events; keys with the lowest priority are reconciled at
most once in `SPACING_S`.
"""

import heapq
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from shoal_operator.planning.observation import Key

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
WAIT_S = 5.0
AGE_S = 5.0
SPACING_S = 1.0
_JITTER = 0.2


class Priority(IntEnum):
    """Reason that a key is due; lower values have precedence."""

    CHANGED = 0
    """Its spec changed, or it was created or deleted."""
    FAILING = 1
    SCALING = 2
    REST = 3
    """Its pods or children changed, or its resync is due."""


class Outcome(StrEnum):
    """The outcome of one reconciliation."""

    DONE = "done"
    WAITING = "waiting"
    """The next step is due in a few seconds."""
    FAILED = "failed"
    GONE = "gone"


@dataclass(slots=True)
class WorkQueue:
    """Queue of keys, with the times at which the keys are due.

    Args:
        resync_s: period of reconciliations without any event (s).
    """

    resync_s: float
    _due: dict[Key, tuple[float, Priority]] = field(default_factory=dict)
    _later: list[tuple[float, Priority, Key]] = field(default_factory=list)
    """A heap by time; entries that `_due` does not hold are stale."""
    _ready: list[tuple[float, float, Priority, Key]] = field(default_factory=list)
    """A heap of due keys, by time and priority."""
    _running: dict[tuple[str, str], float] = field(default_factory=dict)
    """By namespace and name, the start time."""
    _failures: dict[Key, int] = field(default_factory=dict)
    _finished_s: dict[Key, float] = field(default_factory=dict)

    def mark(self, key: Key, due_s: float, priority: Priority = Priority.REST) -> None:
        """Schedule a key; an earlier time or higher priority of the key stays."""
        if priority is Priority.REST and key in self._finished_s:
            due_s = max(due_s, self._finished_s[key] + SPACING_S)
        known = self._due.get(key)
        if known is not None:
            due_s, priority = min(due_s, known[0]), min(priority, known[1])
        if (due_s, priority) != known:
            self._due[key] = due_s, priority
            heapq.heappush(self._later, (due_s, priority, key))

    def take(self, now_s: float) -> Key | None:
        """Return a due key whose name no worker holds, and mark it as running until `finish`."""
        # Move keys whose time has come to the heap that is ordered by priority.
        while self._later and self._later[0][0] <= now_s:
            due_s, priority, key = heapq.heappop(self._later)
            if self._is_free(key, due_s, priority):
                heapq.heappush(self._ready, (due_s + AGE_S * priority, due_s, priority, key))
        while self._ready:
            _, due_s, priority, key = heapq.heappop(self._ready)
            if not self._is_free(key, due_s, priority):
                continue  # stale: marked or taken since, or finish() will push it again
            del self._due[key]
            self._running[key.place] = now_s
            return key
        return None

    def _is_free(self, key: Key, due_s: float, priority: Priority) -> bool:
        return self._due.get(key) == (due_s, priority) and key.place not in self._running

    def finish(self, key: Key, outcome: Outcome, now_s: float, *, jitter: float) -> None:
        """Record the end of a reconciliation.

        Args:
            key: the key that ``take`` returned.
            outcome: determines when the key is due again.
            now_s: monotonic time (s).
            jitter: a random number in [0, 1) that spreads retries and resyncs.
        """
        del self._running[key.place]
        if outcome is Outcome.GONE:
            self._finished_s.pop(key, None)
        else:
            self._finished_s[key] = now_s
        # Back off exponentially after failures; otherwise reconcile again after the resync period.
        delay_s: float | None = None
        failures = self._failures.pop(key, 0)
        if outcome is Outcome.FAILED:
            self._failures[key] = failures + 1
            backoff_s = min(MIN_RETRY_S * 2.0**failures, MAX_RETRY_S)
            delay_s = max(MIN_RETRY_S, backoff_s * (1 - _JITTER * jitter))
        elif outcome is Outcome.WAITING:
            delay_s = WAIT_S
        elif outcome is Outcome.DONE:
            delay_s = self.resync_s * (1 - _JITTER * jitter)
        if (waiting := self._due.pop(key, None)) is not None:
            self.mark(key, *waiting)
        if delay_s is not None:
            self.mark(key, now_s + delay_s, Priority.FAILING if outcome is Outcome.FAILED else Priority.REST)
        # Keys of other kinds with this name could not be taken meanwhile.
        for other in key.namesakes:
            if other in self._due:
                heapq.heappush(self._later, (*self._due[other], other))

    def next_due_s(self) -> float | None:
        """Return the time at which the next key is due; None if the queue is empty."""
        while self._ready and not self._is_free(self._ready[0][3], *self._ready[0][1:3]):
            heapq.heappop(self._ready)
        while self._later and not self._is_free(self._later[0][2], *self._later[0][:2]):
            heapq.heappop(self._later)
        return min([*(each[1] for each in self._ready[:1]), *(each[0] for each in self._later[:1])], default=None)

    def due_since_s(self, now_s: float) -> list[float]:
        """Return the due times of keys that wait for a worker."""
        return [due_s for key, (due_s, _) in self._due.items() if due_s <= now_s and key.place not in self._running]

    def oldest_running_s(self) -> float | None:
        """Return the start (monotonic s) of the longest running reconciliation."""
        return min(self._running.values(), default=None)

    def waiting(self) -> tuple[Key, ...]:
        """Return all keys except keys in reconciliation."""
        return tuple(self._due)

    def __len__(self) -> int:
        return len(self._due)
