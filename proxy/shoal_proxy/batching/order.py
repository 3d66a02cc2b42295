"""Who is next in a group: first come first served within a lane, and which lane's head goes first.

A lane is one priority level of one caller class. Level n is served as if it had come n ageing times later, so a low
level waits longer but never for ever. Classes (an API key, say) share the runtime by weight: of those that wait, the
one that has had the fewest rows for its weight is next. A class that was away starts level with the others; it cannot
save up. This is start-time fair queueing (Goyal, Vin, Cheng 1996), counted in rows.

Without priorities and classes there is one lane, and none of this costs anything.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from shoal_proxy.batching.pending import LaneKey, Pending

Lane = OrderedDict[Pending, None]
_MAX_AWAY = 512
"""Classes that wait for nothing but are remembered, lest they come back as if they had had nothing."""


class Shares:
    """How many rows, by weight, each caller class has had; only of classes that wait or were served of late."""

    def __init__(
        self, weights: Mapping[bytes, float] | None = None, ageing_s: float = 1.0, *, classes: bool = True
    ) -> None:
        self.classes = classes
        """Whether there may be several: otherwise there is nothing to count, and nobody asks."""
        self._weights = dict(weights or {})
        self._ageing_s = ageing_s
        self._had: dict[bytes, float] = {}
        self._waiting: dict[bytes, int] = {}
        self._level = 0.0
        """What the class served last had had when it was its turn."""

    def joined(self, share: bytes) -> None:
        """Count a request of ``share`` that starts to wait."""
        if not self._waiting.get(share):
            self._had[share] = max(self._had.get(share, 0.0), self._level)
        self._waiting[share] = self._waiting.get(share, 0) + 1

    def left(self, share: bytes) -> None:
        """Count a request of ``share`` that no longer waits, served or not."""
        self._waiting[share] -= 1
        if not self._waiting[share]:
            del self._waiting[share]
            if not self._waiting:
                self._had.clear()
                self._level = 0.0
            elif len(self._had) > 2 * (len(self._waiting) + _MAX_AWAY):
                self._forget_away()

    def _forget_away(self) -> None:
        """Forget the classes that wait for nothing, but for those that have had the most."""
        away = [item for item in self._had.items() if item[0] not in self._waiting and item[1] > self._level]
        kept = heapq.nlargest(_MAX_AWAY, away, key=lambda item: item[1])
        self._had = {**{key: self._had[key] for key in self._waiting}, **dict(kept)}

    def served(self, share: bytes, rows: float) -> None:
        """Count ``rows`` that leave for the runtime."""
        self._level = self._had[share]
        self._had[share] += self.cost(share, rows)

    def charged(self, share: bytes, rows: int) -> None:
        """Count ``rows`` that ran again because of ``share``, while others wait."""
        if self.classes and self._waiting:
            self._had[share] = max(self._had.get(share, 0.0), self._level) + self.cost(share, rows)

    def had(self, share: bytes) -> float:
        """Return what ``share`` has had; it must be waiting."""
        return self._had[share] if self.classes else 0.0

    def cost(self, share: bytes, rows: float) -> float:
        """Return what ``rows`` count for ``share``."""
        return rows / self._weights.get(share, 1.0)

    def serving_order(self, lanes: Mapping[LaneKey, Lane]) -> Iterator[Pending]:
        """Yield all requests of ``lanes`` in the order in which they would be served, if no more came."""
        had = {key.share: self._had.get(key.share, 0.0) for key in lanes}
        heap = [self._entry(serial, key, iter(lane), had) for serial, (key, lane) in enumerate(lanes.items())]
        heapq.heapify(heap)
        while heap:
            tag, _, serial, key, request, rest = heap[0]
            if tag < had[key.share]:  # another lane of the same class was served meanwhile
                heapq.heapreplace(heap, (had[key.share], self.turn(key, request), serial, key, request, rest))
                continue
            had[key.share] += self.cost(key.share, request.left)
            yield request
            following = next(rest, None)
            if following is None:
                heapq.heappop(heap)
            else:
                entry = (had[key.share], self.turn(key, following), serial, key, following, rest)
                heapq.heapreplace(heap, entry)

    def _entry(
        self, serial: int, key: LaneKey, rest: Iterator[Pending], had: Mapping[bytes, float]
    ) -> tuple[float, float, int, LaneKey, Pending, Iterator[Pending]]:
        request = next(rest)
        return had[key.share], self.turn(key, request), serial, key, request, rest

    def turn(self, key: LaneKey, request: Pending) -> float:
        """Return when the turn of ``request`` came, with what its level is behind."""
        return request.turn_s + key.level * self._ageing_s
