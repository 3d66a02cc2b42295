"""What came, waited, ran and left since the process began: counters, and integrals over time.

It is told when time has passed and what is held from then on, once a look at the queue and not once a request; so a
mean over any interval is exact, whoever reads it and however seldom.
"""

from typing import Final

from shoal_schema.metrics import Rejection

_SPAN_S: Final = 1.0
"""What `offered_rows_per_s` and `busy` look back on, or longer while nothing happens."""
_KEPT_SPAN_S: Final = 5.0
"""What `kept_rows_per_s` looks back on: whoever asks for it asks seldom, and a second is mostly noise."""


class Traffic:
    """Counts rows, and seconds that rows spent here."""

    def __init__(self) -> None:
        self.arrived_rows = 0
        self.answered_rows = 0
        self.batches = 0
        """That were answered."""
        self.handed_over_rows = 0
        self.refused_rows: dict[Rejection, int] = {}
        self.row_s = 0.0
        """Rows waiting and running, integrated over time."""
        self.queued_row_s = 0.0
        self.busy_s = 0.0
        """With a batch at the runtime."""
        self.offered_rows_per_s = 0.0
        """That arrived in the last second or so."""
        self.kept_rows_per_s = 0.0
        """That arrived in the last seconds and were not handed to a sibling."""
        self.busy = 0.0
        """Share of it with a batch at the runtime."""
        self._queued_rows = self._running_rows = 0
        self._now_s = self._span_began_s = -1.0
        self._span_arrived_rows = 0
        self._kept_began_s, self._kept_rows = -1.0, 0
        self._span_busy_s = 0.0

    def refused(self, reason: Rejection, rows: int) -> None:
        """Count rows that had arrived and are not going to be served."""
        self.refused_rows[reason] = self.refused_rows.get(reason, 0) + rows

    def turned_away(self, reason: Rejection) -> None:
        """Count a request that was refused before it was read: a row, for all one knows."""
        self.arrived_rows += 1
        self.refused(reason, 1)

    def passed(self, now_s: float) -> None:
        """Let time pass until ``now_s``, with the rows that were held."""
        if self._now_s < 0:
            self._now_s = self._span_began_s = self._kept_began_s = now_s
        passed_s = now_s - self._now_s
        if passed_s > 0:
            self._now_s = now_s
            self.queued_row_s += self._queued_rows * passed_s
            self.row_s += (self._queued_rows + self._running_rows) * passed_s
            if self._running_rows:
                self.busy_s += passed_s
            if now_s - self._span_began_s >= _SPAN_S:
                self._close_span()

    def holds(self, queued_rows: int, running_rows: int) -> None:
        """Note what is held from now on."""
        self._queued_rows, self._running_rows = queued_rows, running_rows

    def _close_span(self) -> None:
        span_s = self._now_s - self._span_began_s
        self.offered_rows_per_s = (self.arrived_rows - self._span_arrived_rows) / span_s
        self.busy = min(1.0, (self.busy_s - self._span_busy_s) / span_s)
        self._span_began_s, self._span_arrived_rows, self._span_busy_s = self._now_s, self.arrived_rows, self.busy_s
        if self._now_s - self._kept_began_s >= _KEPT_SPAN_S:
            kept_rows = self.arrived_rows - self.handed_over_rows
            self.kept_rows_per_s = max(0, kept_rows - self._kept_rows) / (self._now_s - self._kept_began_s)
            self._kept_began_s, self._kept_rows = self._now_s, kept_rows
