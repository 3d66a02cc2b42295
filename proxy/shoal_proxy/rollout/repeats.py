"""When a batch runs again on this replica, to measure how much the stable model disagrees with itself.

Like a row check, it runs while the device is idle, within a budget of device time. A batch that has waited for long
runs between two others, if the responses to clients stay in time. While the candidate is suspected, that is while noise
may explain its disagreement, the budget is larger, also on a busy device.
"""

from typing import Final

from shoal_proxy.batching.pending import BatchKey
from shoal_proxy.batching.row_checks.suspicion import RowCheckBudget
from shoal_proxy.batching.scheduler import Scheduler

POLL_S: Final = 0.02
"""The interval of `RepeatSchedule.is_due`: a device without a request for so long counts as idle."""
OVERDUE_S: Final = 0.3
"""Time after which a batch no longer waits for an idle device."""
SUSPECTED_SHARE: Final = 0.02
"""Share of the device's time that is added while the candidate is suspected."""
MOST_SUSPECTED_ROWS: Final = 5000
"""Repeated rows without disagreement, after which noise explains at most a small part of the candidate's."""


class RepeatSchedule:
    """Decides when to run a batch again."""

    __slots__ = ("_arrived_rows", "_budget", "_since_s")

    def __init__(self) -> None:
        self._budget = RowCheckBudget()
        self._arrived_rows = -1
        """Rows that had arrived when the device was idle last; -1 if it was not."""
        self._since_s = -1.0
        """Time since which a batch waits; -1 if none does."""

    def is_due(self, scheduler: Scheduler, key: BatchKey, rows: int, now_s: float, *, suspected: bool = False) -> bool:
        """Return whether to run a waiting batch of ``rows`` rows now; call every `POLL_S`.

        ``suspected``: whether noise may explain the candidate's disagreement so far.
        """
        load, batcher = scheduler.device_load, scheduler.batcher
        self._budget.earn(load, now_s, SUSPECTED_SHARE if suspected else 0.0)
        if self._since_s < 0:
            self._since_s = now_s
        arrived_rows = scheduler.traffic.arrived_rows if scheduler.is_idle else -1
        stays_idle, self._arrived_rows = 0 <= arrived_rows == self._arrived_rows, arrived_rows
        if self._budget.wait_s(load) > 0:
            return False
        if stays_idle:
            return True
        if now_s - self._since_s < OVERDUE_S or len(batcher.running) > batcher.limits.in_flight:
            return False
        return batcher.has_spare_time(batcher.tables[key].p95_s(rows), now_s)

    def record_run(self, took_s: float) -> None:
        """Charge the device time (s) of a batch that has run, with any outcome."""
        self._budget.spend(took_s)
        self._arrived_rows, self._since_s = -1, -1.0
