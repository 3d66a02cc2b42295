"""The queue of services to reconcile.

A key that is scheduled many times is reconciled once. Keys of different kinds with the same name share the names of
their objects, so two workers never reconcile them at the same time. A key that is scheduled during its reconciliation
becomes due again. A failure is retried after 1, 2, 4, ... 60 s. A success is repeated after the resync period, or after
`WAIT_S` if the reconciliation waits for an object.

Of several due keys, those with a changed spec come first. For this order, each level of `Priority` delays a key by
`AGE_S`, so no key waits forever. A rollout causes hundreds of events; keys with the lowest priority are reconciled at
most once in `SPACING_S`.
"""

import heapq
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records

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
class Schedule:
    """The queue's state of one key."""

    due: tuple[float, Priority] | None = None
    """When it is due, and why; None in a reconciliation, unless it was marked meanwhile."""
    failures: int = 0
    """Failed reconciliations in a row."""
    finished_s: float | None = None
    """When its last reconciliation ended."""


@dataclass(slots=True)
class WorkQueue:
    """Keys and the times at which they are due.

    The queue owns the records of all objects.

    Args:
        resync_s: period of reconciliations without any event (s).
        records: states of all objects.
    """

    resync_s: float
    records: Records = field(default_factory=Records)
    _later: list[tuple[float, Priority, Key]] = field(default_factory=list)
    """A heap by time; entries that no `Schedule` holds are stale."""
    _ready: list[tuple[float, float, Priority, Key]] = field(default_factory=list)
    """A heap of due keys, by time and priority."""
    _running: dict[tuple[str, str], float] = field(default_factory=dict)
    """By namespace and name, the start time."""

    def mark(self, key: Key, due_s: float, priority: Priority = Priority.REST) -> None:
        """Schedule the reconciliation of a key.

        If the key is scheduled already, the earlier time and the higher priority apply.
        """
        schedule = self.records.get(key, Schedule)
        if priority is Priority.REST and schedule.finished_s is not None:
            due_s = max(due_s, schedule.finished_s + SPACING_S)
        if schedule.due is not None:
            due_s, priority = min(due_s, schedule.due[0]), min(priority, schedule.due[1])
        if (due_s, priority) != schedule.due:
            schedule.due = due_s, priority
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
            self.records.get(key, Schedule).due = None
            self._running[key.place] = now_s
            return key
        return None

    def _is_free(self, key: Key, due_s: float, priority: Priority) -> bool:
        schedule = self.records.find(key, Schedule)
        return schedule is not None and schedule.due == (due_s, priority) and key.place not in self._running

    def finish(self, key: Key, outcome: Outcome, now_s: float, *, jitter: float) -> None:
        """Record the end of a reconciliation; drop the record of an object that is gone.

        Args:
            key: the key that ``take`` returned.
            outcome: determines when the key is due again.
            now_s: monotonic time (s).
            jitter: a random number in [0, 1) that spreads retries and resyncs.
        """
        del self._running[key.place]
        schedule = self.records.get(key, Schedule)
        marked, schedule.due = schedule.due, None
        delay_s: float | None = None
        if outcome is Outcome.GONE:
            self.records.drop(key)
        else:
            schedule.finished_s = now_s
            # Back off exponentially after failures; otherwise reconcile again after the resync period.
            failures, schedule.failures = schedule.failures, 0
            if outcome is Outcome.FAILED:
                schedule.failures = failures + 1
                backoff_s = min(MIN_RETRY_S * 2.0**failures, MAX_RETRY_S)
                delay_s = max(MIN_RETRY_S, backoff_s * (1 - _JITTER * jitter))
            elif outcome is Outcome.WAITING:
                delay_s = WAIT_S
            else:
                delay_s = self.resync_s * (1 - _JITTER * jitter)
        # A mark during the reconciliation counts, also that of an object created again.
        if marked is not None:
            self.mark(key, *marked)
        if delay_s is not None:
            self.mark(key, now_s + delay_s, Priority.FAILING if outcome is Outcome.FAILED else Priority.REST)
        # Keys of other kinds with this name could not be taken meanwhile.
        for other in key.namesakes:
            if (schedule_of_other := self.records.find(other, Schedule)) and schedule_of_other.due:
                heapq.heappush(self._later, (*schedule_of_other.due, other))

    def next_due_s(self) -> float | None:
        """Return the time at which the next key is due; None if the queue is empty."""
        while self._ready and not self._is_free(self._ready[0][3], *self._ready[0][1:3]):
            heapq.heappop(self._ready)
        while self._later and not self._is_free(self._later[0][2], *self._later[0][:2]):
            heapq.heappop(self._later)
        return min([*(each[1] for each in self._ready[:1]), *(each[0] for each in self._later[:1])], default=None)

    def due_since_s(self, now_s: float) -> list[float]:
        """Return the due times of keys that wait for a worker."""
        waiting = ((key, each.due[0]) for key, each in self.records.of(Schedule) if each.due is not None)
        return [due_s for key, due_s in waiting if due_s <= now_s and key.place not in self._running]

    def oldest_running_s(self) -> float | None:
        """Return the start (monotonic s) of the longest running reconciliation."""
        return min(self._running.values(), default=None)

    def waiting(self) -> tuple[Key, ...]:
        """Return all keys except keys in reconciliation."""
        return tuple(key for key, schedule in self.records.of(Schedule) if schedule.due is not None)

    def __len__(self) -> int:
        return len(self.waiting())
