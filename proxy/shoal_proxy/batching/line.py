"""Whose turn it is among all that wait, whatever their batch keys: which group gives the next batch.

The same order that `order` keeps within a group holds between groups: of the classes that wait the one that has had the
least is next, and within a class the head whose turn came first. Without classes and priorities that is the oldest
head, so nobody can be kept waiting by others of another key who are many, and a new key for each request is no way
past fair shares.

A heap of classes, and for each a heap of its lanes' heads. Nothing is moved when a head leaves or a class is served:
what is on top is put right when it is looked at, since turns and shares only ever go up. So an arrival or a batch
costs the logarithm of the number of keys.
"""

from heapq import heapify, heappop, heappush, heapreplace

from shoal_proxy.batching.group import Group
from shoal_proxy.batching.order import Lane, Shares
from shoal_proxy.batching.pending import LaneKey

_Head = tuple[float, int, Lane, Group, LaneKey]
"""The turn of a lane's first request, when it was looked at last; a serial number, since the rest has no order."""


class Line:
    """The lanes of all groups, by whose turn it is."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._heads: dict[bytes, list[_Head]] = {}
        """By class; each of them is in `_classes` once."""
        self._classes: list[tuple[float, int, bytes]] = []
        self._serial = 0
        self._lanes = 0
        self._compact_at = 256

    def add(self, group: Group, key: LaneKey, lane: Lane) -> None:
        """Take in a lane that has got its first request."""
        share = key.share if self._shares.classes else b""
        self._serial += 1
        heads = self._heads.get(share)
        if heads is None:
            heads = self._heads[share] = []
            heappush(self._classes, (self._shares.had(share), self._serial, share))
        heappush(heads, (self._shares.turn(key, next(iter(lane))), self._serial, lane, group, key))
        self._lanes += 1
        if self._lanes > self._compact_at:
            self._compact()

    def clear(self) -> None:
        """Forget all lanes, since they are empty."""
        self._heads.clear()
        self._classes.clear()
        self._lanes = 0

    def first(self) -> Group:
        """Return the group whose turn it is; some lane must hold a request."""
        while True:
            had, _, share = self._classes[0]
            group = self._first_of(self._heads[share])
            if group is None:
                heappop(self._classes)
                del self._heads[share]
                continue
            has_had = self._shares.had(share)
            if has_had == had:
                return group
            self._serial += 1
            heapreplace(self._classes, (has_had, self._serial, share))

    def _first_of(self, heads: list[_Head]) -> Group | None:
        while heads:
            turn, serial, lane, group, key = heads[0]
            if not lane:
                heappop(heads)
                self._lanes -= 1
                continue
            now_turn = self._shares.turn(key, next(iter(lane)))
            if now_turn == turn:
                return group
            heapreplace(heads, (now_turn, serial, lane, group, key))
        return None

    def _compact(self) -> None:
        """Drop the lanes that have emptied without ever being on top."""
        live = {share: [head for head in heads if head[2]] for share, heads in self._heads.items()}
        self._heads = {share: heads for share, heads in live.items() if heads}
        for heads in self._heads.values():
            heapify(heads)
        self._classes = [entry for entry in self._classes if entry[2] in self._heads]
        heapify(self._classes)
        self._lanes = sum(map(len, self._heads.values()))
        self._compact_at = 256 + 2 * self._lanes
