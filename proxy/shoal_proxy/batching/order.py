"""The order in which waiting requests are served.

Lanes: a lane is the queue of one client class at one priority level, served first come first served. The turn of a
request is its arrival time plus `ageing_s` for each priority level, so low priority waits longer but not forever.
Classes (such as API keys) share the runtime by weight: the waiting class with the fewest served rows per weight is
next. A class that was idle resumes at the count of the class served last, so it cannot accumulate unused shares. This
is start-time fair queueing (Goyal, Vin, Cheng 1996), counted in rows. Without priorities and classes there is one lane,
and the order costs nothing.

Groups: a group holds the waiting requests of one batch key. The next group is the one with the next request: the
request with the earliest turn, of the waiting class that has been served least. Without classes and priorities that is
the oldest request. So many requests of one key cannot starve those of another, and a new key for each request does not
evade fair shares.

The order of groups is a heap of classes, and for each class a heap of the first requests of its lanes. Turns and served
rows only increase, so a heap is corrected only when its top is read. An arrival or a batch costs the logarithm of the
number of keys.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from shoal_proxy.batching.pending import BatchKey, LaneKey, PendingRequest

Lane = OrderedDict[PendingRequest, None]
_MAX_AWAY = 512
"""Classes without waiting requests that are remembered, so that they do not return with a count of 0."""


class FairShares:
    """The served rows per weight of each client class, for fair queueing."""

    def __init__(
        self, weights: Mapping[bytes, float] | None = None, ageing_s: float = 1.0, *, classes: bool = True
    ) -> None:
        self.classes = classes
        """Whether there may be several classes; otherwise usage is not tracked."""
        self._weights = dict(weights or {})
        self._ageing_s = ageing_s
        self._had: dict[bytes, float] = {}
        self._waiting: dict[bytes, int] = {}
        self._level = 0.0
        """Count of the class served last, when it was its turn."""

    def add_request(self, share: bytes) -> None:
        """Count one more waiting request of the client class ``share``."""
        # A class that was away starts at the level of the class served last.
        if not self._waiting.get(share):
            self._had[share] = max(self._had.get(share, 0.0), self._level)
        self._waiting[share] = self._waiting.get(share, 0) + 1

    def remove_request(self, share: bytes) -> None:
        """Count one fewer waiting request of the client class ``share``."""
        self._waiting[share] -= 1
        if not self._waiting[share]:
            del self._waiting[share]
            if not self._waiting:
                # Nothing waits: all classes start anew.
                self._had.clear()
                self._level = 0.0
            elif len(self._had) > 2 * (len(self._waiting) + _MAX_AWAY):
                # Of the classes without waiting requests keep those with the highest counts.
                away = [item for item in self._had.items() if item[0] not in self._waiting and item[1] > self._level]
                kept = heapq.nlargest(_MAX_AWAY, away, key=lambda item: item[1])
                self._had = {**{key: self._had[key] for key in self._waiting}, **dict(kept)}

    def charge(self, share: bytes, rows: float) -> None:
        """Charge the client class ``share`` for ``rows`` sent to the runtime."""
        self._level = self._had[share]
        self._had[share] += self.cost(share, rows)

    def charge_retry(self, share: bytes, rows: int) -> None:
        """Charge a client class for the retries of its faulty request.

        Args:
            share: name of the client class.
            rows: rows that the retries ran again.
        """
        if self.classes and self._waiting:
            self._had[share] = max(self._had.get(share, 0.0), self._level) + self.cost(share, rows)

    def served_rows(self, share: bytes) -> float:
        """Return the served rows per weight of the client class ``share``.

        The class must have a waiting request.
        """
        return self._had[share] if self.classes else 0.0

    def cost(self, share: bytes, rows: float) -> float:
        """Return ``rows`` divided by the weight of the client class ``share``."""
        return rows / self._weights.get(share, 1.0)

    def serving_order(self, lanes: Mapping[LaneKey, Lane]) -> Iterator[PendingRequest]:
        """Yield the requests of ``lanes`` in serving order."""
        had = {key.share: self._had.get(key.share, 0.0) for key in lanes}
        heap: list[tuple[float, float, int, LaneKey, PendingRequest, Iterator[PendingRequest]]] = []
        for number, (lane_key, lane) in enumerate(lanes.items()):
            requests = iter(lane)
            head = next(requests)
            heap.append((had[lane_key.share], self.turn(lane_key, head), number, lane_key, head, requests))
        heapq.heapify(heap)
        while heap:
            tag, _, serial, key, request, rest = heap[0]
            if tag < had[key.share]:  # another lane of the same class was served meanwhile
                heapq.heapreplace(heap, (had[key.share], self.turn(key, request), serial, key, request, rest))
                continue
            had[key.share] += self.cost(key.share, request.remaining_rows)
            yield request
            following = next(rest, None)
            if following is None:
                heapq.heappop(heap)
            else:
                entry = (had[key.share], self.turn(key, following), serial, key, following, rest)
                heapq.heapreplace(heap, entry)

    def turn(self, key: LaneKey, request: PendingRequest) -> float:
        """Return the arrival time of ``request`` plus an ageing time per priority level."""
        return request.turn_s + key.level * self._ageing_s


class Group:
    """The waiting requests of one batch key, in lanes.

    A lane is the queue of one client class at one priority level.
    """

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
        """Add ``pending`` to the end of the lane for its class and priority.

        Returns:
            The lane if it was created for this request, otherwise None.
        """
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
        """Move ``pending`` to the end of its lane, as if it arrived at ``now_s``."""
        pending.turn_s = max(pending.turn_s, now_s)
        self.lanes[pending.lane].move_to_end(pending)
        if pending.soft_deadline_s < self.latest_soft_deadline_s:
            self.in_deadline_order = False

    def __contains__(self, pending: PendingRequest) -> bool:
        return pending in self.lanes.get(pending.lane, ())


_Head = tuple[float, int, Lane, Group, LaneKey]
"""Turn of a lane's first request when it was last read; then a serial number that breaks ties."""


class ServingOrder:
    """The order in which the lanes of all batch keys are served.

    A lane is the queue of one client class at one priority level, within one batch key.
    """

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._heads: dict[bytes, list[_Head]] = {}
        """Heaps by class; each class is in `_classes` once."""
        self._classes: list[tuple[float, int, bytes]] = []
        self._serial = 0
        self._lanes = 0
        self._compact_at = 256

    def add(self, group: Group, key: LaneKey, lane: Lane) -> None:
        """Add a new lane to the order.

        Args:
            group: the group that contains the lane.
            key: client class and priority level of the lane.
            lane: the lane's requests, at least one.
        """
        share = key.share if self._shares.classes else b""
        self._serial += 1
        heads = self._heads.get(share)
        if heads is None:
            heads = self._heads[share] = []
            heappush(self._classes, (self._shares.served_rows(share), self._serial, share))
        heappush(heads, (self._shares.turn(key, next(iter(lane))), self._serial, lane, group, key))
        self._lanes += 1
        if self._lanes > self._compact_at:
            # Drop lanes that emptied without reaching the top.
            live = {share: [head for head in heads if head[2]] for share, heads in self._heads.items()}
            self._heads = {share: heads for share, heads in live.items() if heads}
            for heads in self._heads.values():
                heapify(heads)
            self._classes = [entry for entry in self._classes if entry[2] in self._heads]
            heapify(self._classes)
            self._lanes = sum(map(len, self._heads.values()))
            self._compact_at = 256 + 2 * self._lanes

    def clear(self) -> None:
        """Remove all lanes; called when no request is waiting."""
        self._heads.clear()
        self._classes.clear()
        self._lanes = 0

    def first(self) -> Group:
        """Return the group of waiting requests to serve next.

        At least one request must be waiting.
        """
        while True:
            had, _, share = self._classes[0]
            group = self._first_of(self._heads[share])
            # No lane of this class has a request left.
            if group is None:
                heappop(self._classes)
                del self._heads[share]
                continue
            has_had = self._shares.served_rows(share)
            if has_had == had:
                return group
            # The class was served since it was pushed: correct its place.
            self._serial += 1
            heapreplace(self._classes, (has_had, self._serial, share))

    def _first_of(self, heads: list[_Head]) -> Group | None:
        while heads:
            turn, serial, lane, group, key = heads[0]
            if not lane:  # its requests were served or cancelled
                heappop(heads)
                self._lanes -= 1
                continue
            now_turn = self._shares.turn(key, next(iter(lane)))
            if now_turn == turn:
                return group
            # The head has left since it was pushed: correct the lane's place.
            heapreplace(heads, (now_turn, serial, lane, group, key))
        return None
