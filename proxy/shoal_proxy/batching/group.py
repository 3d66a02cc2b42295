"""The waiting requests of one batch key, in lanes by class and priority."""

from collections import OrderedDict
from collections.abc import Iterator

from shoal_proxy.batching.fair_shares import FairShares, Lane
from shoal_proxy.batching.pending import BatchKey, LaneKey, PendingRequest


class Group:
    """The waiting requests of one batch key, in lanes by class and priority."""

    __slots__ = (
        "_shares",
        "in_deadline_order",
        "key",
        "lanes",
        "later_rows",
        "latest_soft_deadline_s",
        "rows",
        "work_s",
    )

    def __init__(self, key: BatchKey, shares: FairShares) -> None:
        self.key = key
        self.lanes: dict[LaneKey, Lane] = {}
        self.rows = 0
        self.later_rows = 0
        """Rows of large requests beyond their portion: later requests do not wait for them."""
        self.work_s = 0.0
        """Expected time of its batches, where it is tracked (`Batcher._weigh`)."""
        self.in_deadline_order = True
        """Whether serving order is the order of soft deadlines: true while all requests have the same time to live."""
        self.latest_soft_deadline_s = 0.0
        self._shares = shares

    @property
    def claimed_rows(self) -> int:
        """Return the rows that are served before a new request of this key."""
        return self.rows - self.later_rows

    @property
    def oldest_s(self) -> float:
        """Return the time at which the longest waiting request joined its lane."""
        return min([next(iter(lane)).turn_s for lane in self.lanes.values()])

    @property
    def head(self) -> PendingRequest:
        """Return the request that is served next."""
        return next(self.requests())

    def requests(self) -> Iterator[PendingRequest]:
        """Yield the requests in serving order."""
        if len(self.lanes) == 1:
            return iter(next(iter(self.lanes.values())))
        return self._shares.serving_order(self.lanes)

    def add(self, pending: PendingRequest) -> Lane | None:
        """Put ``pending`` at the end of its lane; return the lane if it is a new one."""
        lane = self.lanes.get(pending.lane)
        made = None
        if lane is None:
            lane = made = self.lanes[pending.lane] = OrderedDict()
        lane[pending] = None
        self.rows += pending.rows
        # Serving order and order of `soft_deadline_s` may differ from here on.
        if pending.soft_deadline_s < self.latest_soft_deadline_s or len(self.lanes) > 1:
            self.in_deadline_order = False
        self.latest_soft_deadline_s = pending.soft_deadline_s
        return made

    def remove(self, pending: PendingRequest, rows: int) -> None:
        """Remove ``pending``, which has ``rows`` rows still waiting."""
        lane = self.lanes[pending.lane]
        del lane[pending]
        if not lane:
            del self.lanes[pending.lane]
        self.rows -= rows

    def wait_again(self, pending: PendingRequest, now_s: float) -> None:
        """Move ``pending`` to the end of its lane, with ``now_s`` as its turn."""
        pending.turn_s = max(pending.turn_s, now_s)
        self.lanes[pending.lane].move_to_end(pending)
        if pending.soft_deadline_s < self.latest_soft_deadline_s:
            self.in_deadline_order = False

    def __contains__(self, pending: PendingRequest) -> bool:
        return pending in self.lanes.get(pending.lane, ())
