"""The deadlines of unresolved requests, in a heap."""

import heapq

from shoal_proxy.batching.pending import NEVER_S, PendingRequest


class Deadlines:
    """The deadlines of all unresolved requests, waiting or running, soonest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, PendingRequest]] = []
        self._serial = 0
        self._compact_at = 256

    def add(self, pending: PendingRequest) -> None:
        """Track ``pending`` until it is resolved."""
        self._serial += 1
        heapq.heappush(self._heap, (pending.deadline_s, self._serial, pending))
        # Most requests are answered long before their deadline. Drop those, or the heap would hold minutes of traffic.
        if len(self._heap) > self._compact_at:
            self._heap = [entry for entry in self._heap if not entry[2].resolved]
            heapq.heapify(self._heap)
            self._compact_at = 256 + 2 * len(self._heap)

    @property
    def next_s(self) -> float:
        """Return the earliest deadline of an unresolved request; `NEVER_S` where there is none."""
        heap = self._heap
        # Resolved requests are dropped when they reach the top.
        while heap and heap[0][2].resolved:
            heapq.heappop(heap)
        return heap[0][0] if heap else NEVER_S

    def expired(self, now_s: float) -> list[PendingRequest]:
        """Return the unresolved requests past their deadline, and stop tracking them."""
        due: list[PendingRequest] = []
        while self.next_s <= now_s:
            due.append(heapq.heappop(self._heap)[2])
        return due
