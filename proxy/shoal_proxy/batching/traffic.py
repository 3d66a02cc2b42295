"""Rows that arrived, waited, ran and left since the process began: counters, and integrals over time.

The integrals are updated once per pass over the queue, not once per request, and are exact: a mean over any interval
can be read at any time.
"""

from typing import Final

from shoal_schema.interfaces.metrics import RejectionReason

_SPAN_S: Final = 1.0
"""Span of `offered_rows_per_s` and `busy`; longer while nothing happens."""
_KEPT_SPAN_S: Final = 5.0
"""Span of `kept_rows_per_s`: it is read seldom, and a second is mostly noise."""


class Traffic:
    """Counts rows, and the seconds that rows spent in the proxy."""

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
        """Add the time since the last call to the integrals."""
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
