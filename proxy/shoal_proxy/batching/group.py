"""The waiting requests of one batch key, in lanes by who is served first; the queue is made of these."""

from collections import OrderedDict
from collections.abc import Iterator

from shoal_proxy.batching.order import Lane, Shares
from shoal_proxy.batching.pending import BatchKey, LaneKey, Pending


class Group:
    """The waiting requests of one batch key, in lanes."""

    __slots__ = ("_shares", "in_due_order", "key", "lanes", "later_rows", "latest_due_s", "rows", "work_s")

    def __init__(self, key: BatchKey, shares: Shares) -> None:
        self.key = key
        self.lanes: dict[LaneKey, Lane] = {}
        self.rows = 0
        self.later_rows = 0
        """Those of large requests beyond their portion, which nobody has to wait for."""
        self.work_s = 0.0
        """What its batches should take, where somebody has asked."""
        self.in_due_order = True
        """Whoever is served first is also due first, as long as all have the same time to live."""
        self.latest_due_s = 0.0
        self._shares = shares

    @property
    def claimed_rows(self) -> int:
        """Return the rows that others of this key must wait for."""
        return self.rows - self.later_rows

    @property
    def oldest_s(self) -> float:
        """Return since when the request that has waited longest has."""
        return min([next(iter(lane)).turn_s for lane in self.lanes.values()])

    @property
    def head(self) -> Pending:
        """Return the request that is served next."""
        return next(self.requests())

    def requests(self) -> Iterator[Pending]:
        """Yield the requests in serving order."""
        if len(self.lanes) == 1:
            return iter(next(iter(self.lanes.values())))
        return self._shares.serving_order(self.lanes)

    def add(self, pending: Pending) -> Lane | None:
        """Put ``pending`` at the end of its lane; return the lane if it is a new one."""
        lane = self.lanes.get(pending.lane)
        made = None
        if lane is None:
            lane = made = self.lanes[pending.lane] = OrderedDict()
        lane[pending] = None
        self.rows += pending.rows
        if pending.due_s < self.latest_due_s or len(self.lanes) > 1:
            self.in_due_order = False
        self.latest_due_s = pending.due_s
        return made

    def remove(self, pending: Pending, rows: int) -> None:
        """Take ``pending`` out, of which ``rows`` still waited."""
        lane = self.lanes[pending.lane]
        del lane[pending]
        if not lane:
            del self.lanes[pending.lane]
        self.rows -= rows

    def wait_again(self, pending: Pending, now_s: float) -> None:
        """Put ``pending`` behind the others of its lane, as if the rest of it came now."""
        pending.turn_s = max(pending.turn_s, now_s)
        self.lanes[pending.lane].move_to_end(pending)
        if pending.due_s < self.latest_due_s:
            self.in_due_order = False

    def __contains__(self, pending: Pending) -> bool:
        return pending in self.lanes.get(pending.lane, ())
