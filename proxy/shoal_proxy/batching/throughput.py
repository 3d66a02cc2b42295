"""Served rows per second, including the host's work and pauses.

The model's own time is not the only limit of throughput: reading requests, transferring batches and writing responses
may take longer. So the second with the most served rows is kept, with figures that show whether more was possible: the
fill of its batches, and the busy time of the runtime and the proxy.
"""

from dataclasses import dataclass

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
