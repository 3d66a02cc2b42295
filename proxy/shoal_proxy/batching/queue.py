"""The bounded queue: requests grouped by whom they may share a batch with, in lanes by who is served first.

A request's rows leave in order; a request larger than the room left in a batch is split and its rest stays at the head,
so a batch is always as full as the queue allows. Cancelled and expired requests leave at once.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from shoal_proxy.batching.order import Lane, Shares
from shoal_proxy.batching.pending import BatchKey, LaneKey, Pending, Slice


@dataclass(frozen=True)
class QueueLimits:
    """Bounds of what may wait: rows, and bytes of decoded inputs."""

    max_rows: int
    max_bytes: int


class Group:
    """The waiting requests of one batch key, in lanes."""

    __slots__ = ("_shares", "in_due_order", "key", "lanes", "latest_due_s", "rows")

    def __init__(self, key: BatchKey, shares: Shares) -> None:
        self.key = key
        self.lanes: dict[LaneKey, Lane] = {}
        self.rows = 0
        self.in_due_order = True
        """Whoever is served first is also due first, as long as all have the same time to live."""
        self.latest_due_s = 0.0
        self._shares = shares

    @property
    def oldest_s(self) -> float:
        """Return the arrival of the request that has waited longest."""
        return min([next(iter(lane)).arrived_s for lane in self.lanes.values()])

    @property
    def head(self) -> Pending:
        """Return the request that is served next."""
        return next(self.requests())

    def requests(self) -> Iterator[Pending]:
        """Yield the requests in serving order."""
        if len(self.lanes) == 1:
            return iter(next(iter(self.lanes.values())))
        return self._shares.serving_order(self.lanes)

    def add(self, pending: Pending) -> None:
        """Put ``pending`` at the end of its lane."""
        lane = self.lanes.get(pending.lane)
        if lane is None:
            lane = self.lanes[pending.lane] = OrderedDict()
        lane[pending] = None
        self.rows += pending.rows
        if pending.due_s < self.latest_due_s or len(self.lanes) > 1:
            self.in_due_order = False
        self.latest_due_s = pending.due_s

    def remove(self, pending: Pending, rows: int) -> None:
        """Take ``pending`` out, of which ``rows`` still waited."""
        lane = self.lanes[pending.lane]
        del lane[pending]
        if not lane:
            del self.lanes[pending.lane]
        self.rows -= rows

    def __contains__(self, pending: Pending) -> bool:
        return pending in self.lanes.get(pending.lane, ())


class Queue:
    """What waits, in rows, requests and bytes. Not thread-safe; one event loop owns it."""

    def __init__(self, limits: QueueLimits, shares: Shares | None = None) -> None:
        self.limits = limits
        self.groups: dict[BatchKey, Group] = {}
        self.rows = 0
        self.requests = 0
        self.size_bytes = 0
        self._shares = shares or Shares()

    def full_reason(self, rows: int, size_bytes: int) -> str:
        """Return why ``rows`` more of ``size_bytes`` do not fit, or nothing.

        A request larger than the whole bound is let in when nothing waits: refusing it for ever would help nobody.
        """
        if self.rows and self.rows + rows > self.limits.max_rows:
            return "queue_rows"
        if self.size_bytes and self.size_bytes + size_bytes > self.limits.max_bytes:
            return "queue_bytes"
        return ""

    def add(self, pending: Pending) -> None:
        """Put ``pending`` at the end of its lane; the caller has checked `full_reason`."""
        group = self.groups.get(pending.key)
        if group is None:
            group = self.groups[pending.key] = Group(pending.key, self._shares)
        group.add(pending)
        self._shares.joined(pending.lane.share)
        self.rows += pending.rows
        self.requests += 1
        self.size_bytes += pending.size_bytes

    def remove(self, pending: Pending) -> bool:
        """Take ``pending`` out, whatever rows of it still wait; return whether it was waiting."""
        group = self.groups.get(pending.key)
        if group is None or pending not in group:
            return False
        self._forget(group, pending, pending.left)
        return True

    def take(self, group: Group, max_rows: int) -> list[Slice]:
        """Take up to ``max_rows`` rows from the head of ``group``."""
        slices: list[Slice] = []
        room = max_rows
        for pending in _first(group.requests(), max_rows):
            start = pending.taken
            count = min(room, pending.left)
            pending.taken = start + count
            room -= count
            slices.append(Slice(pending, start, count, pending.inputs))
            self._shares.served(pending.lane.share, count)
            if pending.taken == pending.rows:
                self._forget(group, pending, count)
            else:
                group.rows -= count
                self.rows -= count
        return slices

    def _forget(self, group: Group, pending: Pending, rows: int) -> None:
        group.remove(pending, rows)
        self._shares.left(pending.lane.share)
        self.rows -= rows
        self.requests -= 1
        self.size_bytes -= pending.size_bytes
        if not group.lanes:
            del self.groups[group.key]


def _first(requests: Iterator[Pending], rows: int) -> list[Pending]:
    """Return the requests that hold the first ``rows``; asked for once, since many lanes are dear to look through."""
    first: list[Pending] = []
    while rows > 0 and (pending := next(requests, None)) is not None:
        first.append(pending)
        rows -= pending.left
    return first


class Deadlines:
    """The deadlines of all unresolved requests, waiting or running, soonest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Pending]] = []
        self._serial = 0
        self._compact_at = 256

    def add(self, pending: Pending) -> None:
        """Watch ``pending`` until it is resolved."""
        self._serial += 1
        heapq.heappush(self._heap, (pending.deadline_s, self._serial, pending))
        # Most requests are answered long before their deadline; drop those, or a busy minute would pile up in here.
        if len(self._heap) > self._compact_at:
            self._heap = [entry for entry in self._heap if not entry[2].resolved]
            heapq.heapify(self._heap)
            self._compact_at = 256 + 2 * len(self._heap)

    def next_s(self) -> float | None:
        """Return the soonest deadline of an unresolved request."""
        heap = self._heap
        while heap and heap[0][2].resolved:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def expired(self, now_s: float) -> list[Pending]:
        """Return, and stop watching, the unresolved requests whose deadline has come."""
        due: list[Pending] = []
        while (soonest := self.next_s()) is not None and soonest <= now_s:
            due.append(heapq.heappop(self._heap)[2])
        return due
