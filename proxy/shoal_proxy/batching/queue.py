"""The bounded queue of one model: requests by batch key, client class and priority.

The rows of a request leave in order. A request with more rows than still fit into a batch is split. The remaining rows
stay at the head, so a batch is always as full as the queue allows. Cancelled and expired requests leave at once.

A request of very many rows is served in portions. After each portion the request moves to the end of its lane, so that
other requests are served in between. Only one portion counts against the row limit.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shoal_proxy.batching.order import FairShares, Group, ServingOrder
from shoal_proxy.batching.pending import BatchKey, PendingRequest, RequestSlice
from shoal_schema.interfaces.metrics import RejectionReason


@dataclass(frozen=True)
class QueueLimits:
    """The configured limits of the queue."""

    max_rows: int
    max_bytes: int
    """Size of the decoded inputs."""
    portion_rows: int = 1 << 62
    """Rows of one request that are served, and counted, at a time."""


class Queue:
    """The waiting requests, with their total rows and bytes.

    Only one event loop may use a queue. ``full_rows`` returns the rows of a full batch for a batch key. It is given
    only if batches close by size and age. The queue then tracks the batch keys with enough rows for a full batch, and
    serves batch keys by age alone.
    """

    def __init__(
        self, limits: QueueLimits, shares: FairShares | None = None, full_rows: Callable[[BatchKey], int] | None = None
    ) -> None:
        self.limits = limits
        self.groups: dict[BatchKey, Group] = {}
        self.full: dict[BatchKey, Group] = {}
        """Groups that could fill a batch, in the order in which they became full."""
        self.rows = 0
        self.later_rows = 0
        """Sum of `Group.later_rows` over all groups."""
        self.requests = 0
        self.size_bytes = 0
        self.work_s = 0.0
        """As `Group.work_s`, of all groups."""
        self.shares = shares or FairShares()
        self._full_rows = full_rows
        self._line = ServingOrder(self.shares if full_rows is None else FairShares(ageing_s=0.0, classes=False))
        self._portion_rows = limits.portion_rows
        self._classes = self.shares.classes
        self._lined_up = False
        """Whether groups are in `_line`; a single group needs no order."""

    def rejection_reason(self, rows: int, size_bytes: int) -> RejectionReason | None:
        """Return the limit that a request would exceed; None if the request fits.

        A request larger than a limit is admitted when the queue is empty; otherwise it could never be served.
        """
        if self.rows and self.rows - self.later_rows + min(rows, self._portion_rows) > self.limits.max_rows:
            return RejectionReason.QUEUE_ROWS
        if self.size_bytes and self.size_bytes + size_bytes > self.limits.max_bytes:
            return RejectionReason.QUEUE_BYTES
        return None

    def first(self) -> Group:
        """Return the waiting requests of the batch key to serve next.

        At least one request must be waiting.
        """
        if len(self.groups) == 1:
            return next(iter(self.groups.values()))
        return self._line.first()

    def add(self, pending: PendingRequest) -> None:
        """Add ``pending`` after earlier requests of the same class and priority.

        `rejection_reason` must have returned None for the request.
        """
        group = self.groups.get(pending.key)
        if group is None:
            group = self.groups[pending.key] = Group(pending.key, self.shares)
        lane = group.add(pending)
        if self._classes:
            self.shares.add_request(pending.lane.share)
        if lane is not None:
            if self._lined_up:
                self._line.add(group, pending.lane, lane)
            elif len(self.groups) > 1:
                # The second group: the order of groups begins with all lanes.
                self._lined_up = True
                for each in self.groups.values():
                    for lane_key, its_lane in each.lanes.items():
                        self._line.add(each, lane_key, its_lane)
        # Rows beyond the portion do not count against the bound.
        if pending.rows > self._portion_rows:
            self._count_beyond_portion(group, pending.rows, 1)
        self.rows += pending.rows
        self.requests += 1
        self.size_bytes += pending.size_bytes
        if self._full_rows is not None and self._fills(group):
            self.full.setdefault(group.key, group)

    def remove(self, pending: PendingRequest) -> bool:
        """Remove ``pending`` and its waiting rows; return whether it was waiting."""
        group = self.groups.get(pending.key)
        if group is None or pending not in group:
            return False
        self._forget(group, pending, pending.remaining_rows)
        if self.full and group.key in self.full and not self._fills(group):
            del self.full[group.key]
        return True

    def dequeue(self, group: Group, max_rows: int, now_s: float = 0.0, row_cost: float = 1.0) -> list[RequestSlice]:
        """Remove up to ``max_rows`` rows from the head of ``group``.

        Args:
            group: the waiting requests of one batch key.
            max_rows: maximum rows to remove.
            now_s: monotonic time (s).
            row_cost: cost charged to the client's fair share for each row.
        """
        # The requests with the first rows. The iterator is read once, since ordering many lanes is slow.
        requests, rows = group.requests(), max_rows
        first: list[PendingRequest] = []
        while rows > 0 and (head := next(requests, None)) is not None:
            first.append(head)
            rows -= head.remaining_rows
        slices: list[RequestSlice] = []
        room = max_rows
        for pending in first:
            start, left = pending.dequeued_rows, pending.remaining_rows
            count = min(room, left)
            pending.dequeued_rows = start + count
            room -= count
            slices.append(RequestSlice(pending, start, count, pending.inputs))
            if self._classes:
                self.shares.charge(pending.lane.share, count * row_cost)
            if count == left:
                self._forget(group, pending, count)
                continue
            # The rest stays at the head.
            if pending.rows > self._portion_rows:
                self._count_beyond_portion(group, left, -1)
                self._count_beyond_portion(group, left - count, 1)
            group.rows -= count
            self.rows -= count
            # A portion is complete: other requests are served before the next one.
            if start // self._portion_rows != pending.dequeued_rows // self._portion_rows:
                group.wait_again(pending, now_s)
        if self.full and group.key in self.full:
            del self.full[group.key]  # the other full groups are next
            if self._fills(group):
                self.full[group.key] = group
        return slices

    def set_work(self, group: Group, work_s: float) -> None:
        """Set the expected time (s) to run the queued rows of ``group``."""
        self.work_s += work_s - group.work_s
        group.work_s = work_s

    def _count_beyond_portion(self, group: Group, rows: int, sign: int) -> None:
        """Add or subtract a large request's rows that are exempt from the limit.

        Args:
            group: the group that contains the request.
            rows: rows of the request; those beyond the first portion are exempt.
            sign: 1 to add, -1 to subtract.
        """
        later = sign * max(0, rows - self._portion_rows)
        group.later_rows += later
        self.later_rows += later

    def _fills(self, group: Group) -> bool:
        if not group.lanes or self._full_rows is None:
            return False
        return group.key.solo > 0 or group.rows >= self._full_rows(group.key)

    def _forget(self, group: Group, pending: PendingRequest, rows: int) -> None:
        if group.work_s:
            # Subtract its share of the group's expected time.
            self.set_work(group, group.work_s * (1 - rows / group.rows))
        group.remove(pending, rows)
        if rows > self._portion_rows:
            self._count_beyond_portion(group, rows, -1)
        if self._classes:
            self.shares.remove_request(pending.lane.share)
        self.rows -= rows
        self.requests -= 1
        self.size_bytes -= pending.size_bytes
        if not group.lanes:
            del self.groups[group.key]
            if not self.groups:
                self.work_s = 0.0  # clear rounding errors
                if self._lined_up:
                    self._line.clear()
                    self._lined_up = False
