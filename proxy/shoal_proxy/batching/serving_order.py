"""The order in which groups are served.

Groups follow the same order as requests within a group (`fair_shares`): the waiting class that has been served least is
next, and within a class the first request of a lane whose turn came first. Without classes and priorities that is the
oldest request. So many requests of one key cannot starve those of another, and a new key for each request does not
evade fair shares.

The order is a heap of classes, and for each class a heap of its lanes' heads. Turns and shares only increase, so a heap
is corrected only when its top is read. An arrival or a batch costs the logarithm of the number of keys.
"""

from heapq import heapify, heappop, heappush, heapreplace

from shoal_proxy.batching.fair_shares import FairShares, Lane
from shoal_proxy.batching.group import Group
from shoal_proxy.batching.pending import LaneKey

_Head = tuple[float, int, Lane, Group, LaneKey]
"""Turn of a lane's first request when it was last read; then a serial number that breaks ties."""


class ServingOrder:
    """The lanes of all groups, in the order in which they are served."""

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._heads: dict[bytes, list[_Head]] = {}
        """Heaps by class; each class is in `_classes` once."""
        self._classes: list[tuple[float, int, bytes]] = []
        self._serial = 0
        self._lanes = 0
        self._compact_at = 256

    def add(self, group: Group, key: LaneKey, lane: Lane) -> None:
        """Add a lane that has received its first request."""
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
        """Remove all lanes, once no request waits."""
        self._heads.clear()
        self._classes.clear()
        self._lanes = 0

    def first(self) -> Group:
        """Return the next group to serve; at least one lane must hold a request."""
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
