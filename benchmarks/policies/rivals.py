"""The rules of other servers and papers, as disciplines of the simulator.

Each is idealised: no HTTP, no processes, the true latency table where the rule wants one. What is left is the rule.
Sources: docs/explanation/batching-benchmark.md.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.errors import ProxyError
from shoal_proxy.simulator.engine import SendBatch, SimulatedRequest, SleepUntil


@dataclass(frozen=True, slots=True)
class Setting:
    """The input of a rule: ``latency_s`` of 1, 2, ... rows up to the largest batch, and the objective."""

    latency_s: Sequence[float]
    objective_s: float

    @property
    def largest(self) -> int:
        """Return the largest batch."""
        return len(self.latency_s)

    def lat(self, rows: int) -> float:
        """Return how long a batch of ``rows`` takes."""
        return self.latency_s[rows - 1]

    def most_within(self, time_s: float) -> int:
        """Return the largest batch that takes at most ``time_s``; 0 when even one row takes longer."""
        return bisect_right(self.latency_s, time_s)

    @property
    def sustained(self) -> int:
        """Return the largest batch of which two, one running and one's own, fit the objective; at least 1."""
        return max(1, self.most_within(self.objective_s / 2))

    @property
    def saturation(self) -> float:
        """Return the requests per second of such batches, one after another: mu*."""
        return self.sustained / self.lat(self.sustained)


class Eager:
    """All queued rows leave when the device is free; no row is rejected (TensorFlow Serving, Triton without delays)."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.queue: deque[SimulatedRequest] = deque()
        self.busy = False

    def arrive(self, request: SimulatedRequest, now_s: float) -> Sequence[SimulatedRequest]:
        """Queue it (`Discipline`)."""
        self.queue.append(request)
        return ()

    def decide(self, now_s: float) -> SendBatch | SleepUntil:
        """Ask the rule whenever something waits for a free device (`Discipline`)."""
        if self.busy or not self.queue:
            return SleepUntil()
        return self.form(now_s)

    def finished(self, batch: Sequence[SimulatedRequest], took_s: float, now_s: float) -> Sequence[SimulatedRequest]:
        """Note that the device is free (`Discipline`)."""
        self.busy = False
        return batch

    def failed(self, batch: Sequence[SimulatedRequest], error: ProxyError, now_s: float) -> Sequence[SimulatedRequest]:
        """Fail all requests of the batch (`Discipline`)."""
        self.busy = False
        return batch

    def left(self, request: SimulatedRequest, now_s: float) -> None:
        """Take it out (`Discipline`)."""
        if request in self.queue:
            self.queue.remove(request)

    def form(self, now_s: float) -> SendBatch | SleepUntil:
        """Form the next batch of a queue that is not empty."""
        return self.send(self.setting.largest)

    def send(self, most: int, refused: Sequence[SimulatedRequest] = ()) -> SendBatch:
        """Send up to ``most`` of the queue."""
        batch = [self.queue.popleft() for _ in range(min(most, len(self.queue)))]
        self.busy = bool(batch)
        return SendBatch(batch, refused)

    def drop_late(self, finish_s: float) -> list[SimulatedRequest]:
        """Remove requests at the head with a deadline before ``finish_s``."""
        refused = []
        while self.queue and self.queue[0].soft_deadline_s < finish_s:
            refused.append(self.queue.popleft())
        return refused


class TimerFromHead(Eager):
    """Full, or the first has waited for a quarter of the objective (Triton's queue delay)."""

    def form(self, now_s: float) -> SendBatch | SleepUntil:
        """Form the next batch."""
        close_s = self.queue[0].arrived_s + self.setting.objective_s / 4
        return self.send(self.setting.largest) if self._closes(now_s, close_s) else SleepUntil(close_s)

    def _closes(self, now_s: float, close_s: float) -> bool:
        return len(self.queue) >= self.setting.largest or now_s >= close_s


class TimerFromFree(TimerFromHead):
    """Full, or a quarter of the objective since the worker took the first (TorchServe, mosec, LitServe)."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._close_s = NEVER_S

    def form(self, now_s: float) -> SendBatch | SleepUntil:
        """Form the next batch."""
        if self._close_s == NEVER_S:
            self._close_s = now_s + self.setting.objective_s / 4
        if not self._closes(now_s, self._close_s):
            return SleepUntil(self._close_s)
        self._close_s = NEVER_S
        return self.send(self.setting.largest)


class Clipper(Eager):
    """A largest batch that grows by one while batches meet the objective, else shrinks by a tenth (AIMD)."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._most = 1.0

    def form(self, now_s: float) -> SendBatch | SleepUntil:
        """Form the next batch."""
        return self.send(int(self._most))

    def finished(self, batch: Sequence[SimulatedRequest], took_s: float, now_s: float) -> Sequence[SimulatedRequest]:
        """Grow or shrink."""
        in_time = all(now_s <= request.soft_deadline_s for request in batch)
        if not in_time:
            self._most = max(1.0, 0.9 * self._most)
        elif len(batch) >= int(self._most):
            self._most = min(self._most + 1, self.setting.largest)
        return super().finished(batch, took_s, now_s)


class Clockwork(Eager):
    """The largest batch that still answers the first in time; who cannot be answered in time is refused."""

    def form(self, now_s: float) -> SendBatch | SleepUntil:
        """Form the next batch."""
        refused = self.drop_late(now_s + self.setting.lat(1))
        if not self.queue:
            return self.send(0, refused)
        return self.send(self.setting.most_within(self.queue[0].soft_deadline_s - now_s), refused)


class Nexus(Eager):
    """Those at the head are refused until a batch of the sustained size answers the first in time (early drop)."""

    def drop_early(self, now_s: float) -> list[SimulatedRequest]:
        """Slide the window of the sustained size along the queue."""
        refused: list[SimulatedRequest] = []
        while self.queue:
            finish_s = now_s + self.setting.lat(min(len(self.queue), self.setting.sustained))
            if self.queue[0].soft_deadline_s >= finish_s:
                break
            refused.append(self.queue.popleft())
        return refused

    def form(self, now_s: float) -> SendBatch | SleepUntil:
        """Form the next batch."""
        refused = self.drop_early(now_s)
        if not self.queue:
            return self.send(0, refused)
        return self.send(self.setting.most_within(self.queue[0].soft_deadline_s - now_s), refused)


class Symphony(Nexus):
    """A batch is held until one more row would make the first late; early drop (Symphony, Proteus)."""

    def form(self, now_s: float) -> SendBatch | SleepUntil:
        """Form the next batch."""
        refused = self.drop_early(now_s)
        if not self.queue:
            return self.send(0, refused)
        soft_deadline_s = self.queue[0].soft_deadline_s
        rows = min(len(self.queue), self.setting.most_within(soft_deadline_s - now_s))
        if rows < min(len(self.queue), self.setting.largest) or rows == self.setting.largest:
            return self.send(rows, refused)
        latest_s = soft_deadline_s - self.setting.lat(rows + 1)
        if now_s >= latest_s:
            return self.send(rows, refused)
        return SendBatch((), refused) if refused else SleepUntil(latest_s)


class BentoML(Eager):
    """The corked dispatcher: drops the first while the whole queue would make it late; looks once a millisecond."""

    TICK_S = 0.001

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        largest = setting.largest
        self._per_row_s = (setting.lat(largest) - setting.lat(1)) / max(1, largest - 1)
        self._base_s = setting.lat(1) - self._per_row_s
        self._waits_s: deque[float] = deque(maxlen=50)
        self._look_s = 0.0

    def decide(self, now_s: float) -> SendBatch | SleepUntil:
        """Look at the queue once a tick, at once when something comes to an idle dispatcher."""
        if not self.queue:
            return SleepUntil()
        if now_s < self._look_s:
            return SleepUntil(self._look_s)
        refused = self._drop(now_s)
        count = len(self.queue)
        if not count:
            return SendBatch((), refused)
        if self.busy or (count < self.setting.largest and self._waits(count, now_s)):
            self._look_s = now_s + self.TICK_S
            return SendBatch((), refused) if refused else SleepUntil(self._look_s)
        self._waits_s.append(now_s - self.queue[0].arrived_s)
        return self.send(self.setting.largest, refused)

    def _drop(self, now_s: float) -> list[SimulatedRequest]:
        refused = []
        while len(self.queue) > 1:
            age_s = now_s - self.queue[0].arrived_s
            if age_s + self._per_row_s * len(self.queue) + self._base_s < self.setting.objective_s:
                break
            refused.append(self.queue.popleft())
        return refused

    def _waits(self, count: int, now_s: float) -> bool:
        mean_s = sum(self._waits_s) / len(self._waits_s) if self._waits_s else 0.0
        newest_s = now_s - self.queue[-1].arrived_s
        return count * (newest_s + self.TICK_S + self._per_row_s) <= 0.95 * mean_s


class AgeReject(Eager):
    """Requests older than ``oldest_s`` when taken are rejected (Triton's REJECT, LitServe's request timeout)."""

    def __init__(self, setting: Setting, oldest_s: float, most: int) -> None:
        super().__init__(setting)
        self._oldest_s = oldest_s
        self._most = most

    def form(self, now_s: float) -> SendBatch | SleepUntil:
        """Form the next batch."""
        refused = []
        while self.queue and now_s - self.queue[0].arrived_s > self._oldest_s:
            refused.append(self.queue.popleft())
        return self.send(self._most, refused)


class BestRate(Eager):
    """The rule that Shoal's began as: the stretch of the queue that serves the most requests a second, all in time."""

    def form(self, now_s: float) -> SendBatch | SleepUntil:
        """Form the next batch."""
        refused = self.drop_late(now_s + self.setting.lat(1))
        if not self.queue:
            return self.send(0, refused)
        waiting = len(self.queue)
        rows = self._fitting(self.queue[0], waiting, now_s)
        if rows not in (waiting, self.setting.largest):
            first, rows = self._best(now_s)
            refused += [self.queue.popleft() for _ in range(first)]
        return self.send(rows, refused)

    def _fitting(self, first: SimulatedRequest, waiting: int, now_s: float) -> int:
        return min(waiting, self.setting.most_within(first.soft_deadline_s - now_s))

    def _best(self, now_s: float) -> tuple[int, int]:
        best, best_rate = (0, 1), 0.0
        waiting = len(self.queue)
        for index, request in enumerate(self.queue):
            rows = self._fitting(request, waiting - index, now_s)
            if rows and (rate := rows / self.setting.lat(rows)) > best_rate:
                best, best_rate = (index, rows), rate
            if rows == waiting - index:
                break
        return best
