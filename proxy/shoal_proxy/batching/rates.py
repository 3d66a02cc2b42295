"""Measurements of a running proxy: rates, totals of rows and times, and the time per row.

The model's own time is not the only limit of throughput: reading requests, transferring batches and writing responses
may take longer. So `Throughput` keeps the second with the most served rows, with figures that show whether more was
possible: the fill of its batches, and the busy time of the runtime and the proxy.

`Traffic` integrates waiting and running rows over time. It is updated once per pass over the queue, not once per
request, and is exact: a mean over any interval can be read at any time.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

from shoal_schema.interfaces.metrics import RejectionReason

_WINDOW_S = 1.0
_FORGET_S = 600.0
"""Age after which a second of fewer rows replaces the busiest: models, machines and requests change."""


@dataclass(frozen=True)
class BusiestSecond:
    """Rate and utilization of the busiest recent second."""

    rows_per_s: float
    batch_rows: float
    """Mean rows of a batch."""
    runtime_busy: float
    """Share with a batch at the runtime."""
    proxy_busy: float
    """Share in which the proxy's thread used a core."""


class Throughput:
    """The rows served per second; a batch counts once all responses are sent."""

    def __init__(self) -> None:
        self._best: BusiestSecond | None = None
        self._best_s = 0.0
        self._begin_s = self._ended_s = self._runtime_s = 0.0
        self._cpu_begin_s = self._cpu_s = 0.0
        self._rows = self._batches = 0

    def record(self, rows: int, *, sent_s: float, completed_s: float, cpu_s: float) -> None:
        """Count a completed batch.

        Args:
            rows: rows of the batch.
            sent_s: time at which the batch was sent to the runtime.
            completed_s: time at which all its responses were sent.
            cpu_s: processor time of the proxy's thread since it started.
        """
        if not self._batches or sent_s >= self._begin_s + _WINDOW_S:
            # The second is over: keep it if it was the busiest, and begin the next.
            if self._batches:
                now = self._now()
                if self._beats(now):
                    self._best, self._best_s = now, self._ended_s
            self._rows = self._batches = 0
            self._runtime_s = 0.0
            self._begin_s = self._ended_s = sent_s
            self._cpu_begin_s = cpu_s
        self._rows += rows
        self._batches += 1
        # Batches may overlap; count each moment once.
        self._runtime_s += max(0.0, completed_s - max(sent_s, self._ended_s))
        self._ended_s = max(self._ended_s, completed_s)
        self._cpu_s = cpu_s

    @property
    def busiest(self) -> BusiestSecond | None:
        """Return the second in which most rows were served; None before the first batch."""
        now = self._now() if self._batches else None
        return now if now is not None and self._beats(now) else self._best

    def _beats(self, now: BusiestSecond) -> bool:
        best = self._best
        return best is None or now.rows_per_s >= best.rows_per_s or self._ended_s > self._best_s + _FORGET_S

    def _now(self) -> BusiestSecond:
        # A batch that takes longer than a second counts with all its time.
        spent_s = max(_WINDOW_S, self._ended_s - self._begin_s)
        return BusiestSecond(
            rows_per_s=self._rows / spent_s,
            batch_rows=self._rows / self._batches,
            runtime_busy=self._runtime_s / spent_s,
            proxy_busy=(self._cpu_s - self._cpu_begin_s) / spent_s,
        )


_SPAN_S: Final = 1.0
"""Span of `offered_rows_per_s` and `busy`; longer while nothing happens."""
_KEPT_SPAN_S: Final = 5.0
"""Span of `kept_rows_per_s`: it is read seldom, and a second is mostly noise."""


class Traffic:
    """Counts of rows, and the total time (s) that rows spent in the proxy."""

    def __init__(self) -> None:
        self.arrived_rows = 0
        self.answered_rows = 0
        self.batches = 0
        """Batches that were answered."""
        self.forwarded_rows = 0
        self.refused_rows: dict[RejectionReason, int] = {}
        self.row_s = 0.0
        """Rows waiting and running, integrated over time."""
        self.queued_row_s = 0.0
        """Rows waiting, integrated over time."""
        self.busy_s = 0.0
        """Time with a batch at the runtime."""
        self.offered_rows_per_s = 0.0
        """Rows that arrived in the last second or so."""
        self.kept_rows_per_s = 0.0
        """Rows that arrived in the last seconds and were not forwarded to a peer."""
        self.busy = 0.0
        """Share of the last second or so with a batch at the runtime."""
        self._queued_rows = self._running_rows = 0
        self._now_s = self._span_began_s = -1.0
        self._span_arrived_rows = 0
        self._kept_began_s, self._kept_rows = -1.0, 0
        self._span_busy_s = 0.0

    def count_rejected(self, reason: RejectionReason, rows: int) -> None:
        """Count rows that arrived and were rejected."""
        self.refused_rows[reason] = self.refused_rows.get(reason, 0) + rows

    def count_unread_rejection(self, reason: RejectionReason) -> None:
        """Count a request that was rejected before it was read, as one row."""
        self.arrived_rows += 1
        self.count_rejected(reason, 1)

    def advance(self, now_s: float) -> None:
        """Add the rows' and the runtime's time up to ``now_s`` to the totals."""
        if self._now_s < 0:
            self._now_s = self._span_began_s = self._kept_began_s = now_s
        passed_s = now_s - self._now_s
        if passed_s > 0:
            self._now_s = now_s
            self.queued_row_s += self._queued_rows * passed_s
            self.row_s += (self._queued_rows + self._running_rows) * passed_s
            if self._running_rows:
                self.busy_s += passed_s
            span_s = now_s - self._span_began_s
            if span_s >= _SPAN_S:
                self.offered_rows_per_s = (self.arrived_rows - self._span_arrived_rows) / span_s
                self.busy = min(1.0, (self.busy_s - self._span_busy_s) / span_s)
                self._span_began_s, self._span_arrived_rows, self._span_busy_s = now_s, self.arrived_rows, self.busy_s
                kept_s = now_s - self._kept_began_s
                if kept_s >= _KEPT_SPAN_S:
                    kept_rows = self.arrived_rows - self.forwarded_rows
                    self.kept_rows_per_s = max(0, kept_rows - self._kept_rows) / kept_s
                    self._kept_began_s, self._kept_rows = now_s, kept_rows

    def set_held_rows(self, queued_rows: int, running_rows: int) -> None:
        """Set the numbers of rows that the proxy holds from now on."""
        self._queued_rows, self._running_rows = queued_rows, running_rows


"""Totals of executed batches by size, for the statistics API. Pure."""


class ExecutionTimes:
    """A number of executions, and the total time (s) of each of their phases."""

    __slots__ = ("count", "infer_s", "input_s", "output_s")

    def __init__(self) -> None:
        self.count = 0
        self.input_s = 0.0
        self.infer_s = 0.0
        self.output_s = 0.0

    def add(self, count: int, input_s: float, infer_s: float, output_s: float) -> None:
        """Add ``count`` executions, each with the given times (s)."""
        self.count += count
        self.input_s += count * input_s
        self.infer_s += count * infer_s
        self.output_s += count * output_s


class Executions:
    """Totals of all completed batches since the process started."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self.requests = ExecutionTimes()
        """Each request counts with the times of the batch that completed it."""
        self.by_rows: dict[int, ExecutionTimes] = {}
        """By batch size: at most as many entries as a batch may have rows."""
        self.last_s: float | None = None
        """Monotonic time (s) of the last response; None before the first."""

    def record(
        self, rows: int, requests: int, *, input_s: float, infer_s: float, output_s: float, now_s: float
    ) -> None:
        """Add a completed batch to the totals.

        Args:
            rows: rows of the batch.
            requests: number of requests that the batch completed.
            input_s: time from forming to sending the batch.
            infer_s: time at the runtime.
            output_s: time from receiving to splitting the result.
            now_s: monotonic time at which the result was split.
        """
        self.rows += rows
        self.batches += 1
        self.last_s = now_s
        self.requests.add(requests, input_s, infer_s, output_s)
        times = self.by_rows.get(rows)
        if times is None:
            times = self.by_rows[rows] = ExecutionTimes()
        times.add(1, input_s, infer_s, output_s)


_DRAIN_WEIGHT = 0.2
"""Weight of the newest batch in the moving average."""


class DrainRate:
    """A moving average of the runtime's seconds per row, over batches of all sizes."""

    def __init__(self) -> None:
        self.row_s = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Record that a batch of ``rows`` took ``seconds``."""
        row_s = seconds / rows
        self.row_s = row_s if not self.row_s else self.row_s + _DRAIN_WEIGHT * (row_s - self.row_s)

    def retry_after_s(self, rows: int) -> int:
        """Return the seconds, 1 to 60, after which ``rows`` waiting rows will have been served."""
        return min(60, max(1, ceil(rows * self.row_s)))
