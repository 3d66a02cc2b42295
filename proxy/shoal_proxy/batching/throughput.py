"""How many rows a second were served in truth, the host's work and every pause included.

What a model's own time would allow says little of it: reading requests, carrying batches and writing answers may take
longer than the model. So the second in which most rows were served is kept, with what tells whether it could have been
more: how full its batches were, how long the runtime was at work, and how much of its core the proxy used.
"""

from dataclasses import dataclass

_WINDOW_S = 1.0
_FORGET_S = 600.0
"""After so long a second of fewer rows takes the place of the busiest: models, machines and requests change."""


@dataclass(frozen=True)
class Busiest:
    """The busiest second of late. Shares are of its time."""

    rows_per_s: float
    batch_rows: float
    """Rows of a batch, mean."""
    runtime_busy: float
    """Share in which a batch was at the runtime."""
    proxy_busy: float
    """Share in which the proxy's thread used a core."""


class Throughput:
    """Counts rows by the second; it is told of each batch when its answers have left."""

    def __init__(self) -> None:
        self._best: Busiest | None = None
        self._best_s = 0.0
        self._begin_s = self._ended_s = self._runtime_s = 0.0
        self._cpu_begin_s = self._cpu_s = 0.0
        self._rows = self._batches = 0

    def served(self, rows: int, *, sent_s: float, answered_s: float, cpu_s: float) -> None:
        """Count a batch.

        Args:
            rows: in it.
            sent_s: when it was sent to the runtime.
            answered_s: when its answers had left.
            cpu_s: processor time that the proxy's thread has used in its life.
        """
        if not self._batches or sent_s >= self._begin_s + _WINDOW_S:
            self._close()
            self._begin_s = self._ended_s = sent_s
            self._cpu_begin_s = cpu_s
        self._rows += rows
        self._batches += 1
        self._runtime_s += max(0.0, answered_s - max(sent_s, self._ended_s))
        self._ended_s = max(self._ended_s, answered_s)
        self._cpu_s = cpu_s

    @property
    def busiest(self) -> Busiest | None:
        """Return the second in which most rows were served; None before the first batch."""
        now = self._now() if self._batches else None
        return now if now is not None and self._beats(now) else self._best

    def _close(self) -> None:
        if self._batches:
            now = self._now()
            if self._beats(now):
                self._best, self._best_s = now, self._ended_s
        self._rows = self._batches = 0
        self._runtime_s = 0.0

    def _beats(self, now: Busiest) -> bool:
        best = self._best
        return best is None or now.rows_per_s >= best.rows_per_s or self._ended_s > self._best_s + _FORGET_S

    def _now(self) -> Busiest:
        # A batch that takes longer than a second counts with all its time.
        spent_s = max(_WINDOW_S, self._ended_s - self._begin_s)
        return Busiest(
            rows_per_s=self._rows / spent_s,
            batch_rows=self._rows / self._batches,
            runtime_busy=self._runtime_s / spent_s,
            proxy_busy=(self._cpu_s - self._cpu_begin_s) / spent_s,
        )
