"""A cluster in steps of 0.1 s: replicas that take time to start, a law that decides, and what becomes of the rows.

A coarse model of replicas between which requests are balanced: what they serve together is what full batches give, what
waits is one queue, and requests that would be late are rejected on arrival. The length of batches, and so the rows in
the system, follow from the rate. `exact` runs the proxy's own code instead, request by request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.scalers.readings import Law, Reading, Service
from benchmarks.scalers.scenarios import STEP_S

GUARD = 0.04
"""Share of the objective that the door keeps in reserve: between `admission.MIN_GUARD` and `MAX_GUARD`."""


@dataclass(slots=True)
class Course:
    """What happened, second by second."""

    offered: list[float] = field(default_factory=list)
    violated: list[float] = field(default_factory=list)
    """Rows that were refused, late, or lost, of those that arrived in that second."""
    replicas: list[int] = field(default_factory=list)
    """That existed, starting ones included: what is paid for."""
    decided: list[tuple[float, int]] = field(default_factory=list)
    """When the law wanted another number of replicas, and how many."""


@dataclass(slots=True)
class Pods:
    """Replicas by when they are ready; those that are still to start go first when there are too many."""

    ready_s: list[float]

    def ready(self, now_s: float) -> int:
        """Return how many serve."""
        return sum([ready_s <= now_s for ready_s in self.ready_s])

    def scale(self, replicas: int, now_s: float, start_s: float) -> None:
        """Create or remove some."""
        self.ready_s.sort()
        del self.ready_s[replicas:]
        self.ready_s += [now_s + start_s] * (replicas - len(self.ready_s))


def run(law: Law, service: Service, counts: Sequence[int], replicas: int) -> Course:
    """Let rows arrive as ``counts`` says, for each step, at ``replicas`` that are ready, and ``law`` scale them."""
    course, pods = Course(), Pods([0.0] * replicas)
    model = _Replicas(service)
    steps_a_second = round(1 / STEP_S)
    every, ready, next_s, wanted = 0, replicas, 0.0, replicas
    for number, arrived in enumerate(counts):
        now_s = number * STEP_S
        if now_s >= next_s - 1e-9:
            next_s += law.period_s
            reading = model.reading(now_s, len(pods.ready_s), pods.ready(now_s))
            decided = max(service.minimum, min(service.maximum, law.decide(reading, now_s)))
            if decided != wanted:
                wanted = decided
                course.decided.append((now_s, decided))
                pods.scale(decided, now_s, service.start_s)
        if not every:
            course.offered.append(0.0)
            course.violated.append(0.0)
            course.replicas.append(len(pods.ready_s))
        ready = pods.ready(now_s) if not number % 2 else min(ready, len(pods.ready_s))
        course.offered[-1] += arrived
        course.violated[-1] += model.step(int(arrived), ready)
        every = (every + 1) % steps_a_second
    return course


class _Replicas:
    """What the replicas hold together, and their counters."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._queued = self._running = self._queued_now = 0.0
        self._arrived = self._refused = self._answered = 0.0
        self._row_s = self._queued_row_s = self._busy_s = 0.0

    def step(self, arrived: int, ready: int) -> float:
        """Serve for one step; return how many rows are refused."""
        service = self._service
        waiting = self._queued + arrived
        most = service.rows_per_s * ready
        served = min(waiting, most * STEP_S)
        full_s = service.latency_s(service.largest)
        room = most * max(0.0, (1 - GUARD) * service.objective_s - 1.5 * full_s)
        refused = max(0.0, waiting - served - room)
        self._queued = waiting - served - refused
        self._arrived += arrived
        self._refused += refused
        self._answered += served
        self._hold(served, ready)
        return refused

    def _hold(self, served: float, ready: int) -> None:
        """Count the rows in the system and the devices' time, as batches of the size that the rate makes have them."""
        service = self._service
        rate = served / STEP_S / ready if ready else 0.0
        rest = 1 - rate * service.row_s
        largest_s = service.latency_s(service.largest)
        batch_s = min(max(service.base_s / rest, service.latency_s(1)), largest_s) if rest > 0 else largest_s
        rows = max(1.0, min(rate * batch_s, service.largest))
        busy = min(1.0, rate * batch_s / rows)
        self._running = ready * rate * batch_s
        # A request at a busy device waits for half a batch on average.
        self._queued_now = self._queued + ready * rate * busy * batch_s / 2
        self._row_s += (self._running + self._queued_now) * STEP_S
        self._queued_row_s += self._queued_now * STEP_S
        self._busy_s += busy * ready * STEP_S

    def reading(self, now_s: float, replicas: int, ready: int) -> Reading:
        """Return what a law may know."""
        return Reading(
            now_s,
            replicas,
            ready,
            round(self._queued_now),
            round(self._running),
            round(self._arrived),
            round(self._answered),
            round(self._refused),
            self._row_s,
            self._queued_row_s,
            self._busy_s,
        )


def needed(service: Service, counts: Sequence[int]) -> list[int]:
    """Return how many replicas each second needs: enough for its rows, and for those of its worst tenth but a queue."""
    size = round(1 / STEP_S)
    seconds = [counts[first : first + size] for first in range(0, len(counts), size)]
    room_s = (1 - GUARD) * service.objective_s - 1.5 * service.latency_s(service.largest)
    most = service.rows_per_s * (STEP_S + room_s)
    return [
        max(service.minimum, math.ceil(sum(each) / service.rows_per_s), math.ceil(max(each) / most)) for each in seconds
    ]


def foreseen(service: Service, wanted: Sequence[int]) -> list[int]:
    """Return a plan that has ``wanted`` replicas ready in each second: each is created as long before as it starts."""
    ahead = math.ceil(service.start_s) + 1
    # What is needed at any time until a new one would be there exists already.
    return [max(wanted[second : second + ahead]) for second in range(len(wanted))]
