"""Serving order within a group: first come first served within a lane, and selection of the next lane.

A lane is one priority level of one client class. A request of level n is served as if it had arrived n ageing times
later, so low priority waits longer but not forever. Classes (such as API keys) share the runtime by weight: the waiting
class with the fewest served rows per weight is next. A class that was idle resumes at the count of the class served
last, so it cannot accumulate unused shares. This is start-time fair queueing (Goyal, Vin, Cheng 1996), counted in rows.

Without priorities and classes there is one lane, and the order costs nothing.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from shoal_proxy.batching.pending import LaneKey, PendingRequest

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
        """Count a request of class ``share`` that starts to wait."""
        # A class that was away starts at the level of the class served last.
        if not self._waiting.get(share):
            self._had[share] = max(self._had.get(share, 0.0), self._level)
        self._waiting[share] = self._waiting.get(share, 0) + 1

    def remove_request(self, share: bytes) -> None:
        """Count a request of class ``share`` that no longer waits, served or not."""
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
        """Charge class ``share`` for ``rows`` that are sent to the runtime."""
        self._level = self._had[share]
        self._had[share] += self.cost(share, rows)

    def charge_retry(self, share: bytes, rows: int) -> None:
        """Charge class ``share`` for ``rows`` that its faulty request made run again."""
        if self.classes and self._waiting:
            self._had[share] = max(self._had.get(share, 0.0), self._level) + self.cost(share, rows)

    def served_rows(self, share: bytes) -> float:
        """Return the served rows per weight of class ``share``, which must be waiting."""
        return self._had[share] if self.classes else 0.0

    def cost(self, share: bytes, rows: float) -> float:
        """Return ``rows`` divided by the weight of class ``share``."""
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
