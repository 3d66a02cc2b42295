"""The queue of webhooks to deliver: what is held, and which tries start now."""

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from shoal_proxy.asynchronous.callbacks import Callback

MAX_RUNNING: Final = 16
"""Tries at a time."""
MAX_RUNNING_PER_HOST: Final = 4
"""Tries at a time to one host and port, so that a slow receiver does not delay others."""


class Delivery(Struct, eq=False):
    """A webhook that is not delivered yet. Times are monotonic seconds."""

    job_id: str
    callback: Callback
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    """Headers that every try repeats."""
    body: Sequence[bytes | memoryview]
    size_bytes: int
    tries: int = 0
    first_s: float = 0.0
    """Start of the first try."""

    @property
    def receiver(self) -> tuple[str, int]:
        """Host and port."""
        return self.callback.host, self.callback.port


class DeliveryQueue:
    """Webhooks to deliver, within limits.

    Args:
        max_held: maximum number of deliveries.
        max_bytes: maximum size of their bodies.
    """

    def __init__(self, max_held: int, max_bytes: int) -> None:
        self._max_held = max_held
        self._max_bytes = max_bytes
        self.held = 0
        self.size_bytes = 0
        self._held_of: Counter[tuple[str, int]] = Counter()
        self._bytes_of: Counter[tuple[str, int]] = Counter()
        """Deliveries and their bytes, by receiver."""
        self._running: Counter[tuple[str, int]] = Counter()
        # Heaps of time, order and delivery, by receiver, in the order of the receivers' turns.
        self._waiting: dict[tuple[str, int], list[tuple[float, int, Delivery]]] = {}
        self._next_order = 0

    @property
    def untried(self) -> int:
        """Number of deliveries that wait for their first try."""
        return sum(delivery.tries == 0 for heap in self._waiting.values() for *_, delivery in heap)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether another delivery of this size is within the limits."""
        return self.held < self._max_held and self.size_bytes + size_bytes <= self._max_bytes

    def make_room(self, delivery: Delivery) -> list[Delivery]:
        """Remove deliveries of the receivers that hold the most, so that a new one is within the limits.

        Each of them holds more than the new one's receiver would, so a receiver that does not respond costs others no
        webhook. The delivery that would start last is removed first.

        Returns: the removed deliveries. Afterwards, `has_room` may still be False.
        """
        removed: list[Delivery] = []
        while not self.has_room(delivery.size_bytes) and self._waiting:
            by_number = self.held >= self._max_held
            amounts, more = (self._held_of, 1) if by_number else (self._bytes_of, delivery.size_bytes)
            receiver = max(self._waiting, key=amounts.__getitem__)
            if amounts[receiver] <= amounts[delivery.receiver] + more:
                break
            heap = self._waiting[receiver]
            last = max(heap)
            heap.remove(last)
            heapq.heapify(heap)
            if not heap:
                del self._waiting[receiver]
            self._hold(last[2], -1)
            removed.append(last[2])
        return removed

    def add(self, delivery: Delivery, now_s: float) -> None:
        """Hold a delivery, which starts as soon as its receiver has a free place."""
        self._hold(delivery, 1)
        self._wait(delivery, now_s)

    def start(self, now_s: float) -> list[Delivery]:
        """Return the deliveries to try now; each counts as running."""
        started: list[Delivery] = []
        progress = True
        while progress and self._running.total() < MAX_RUNNING:
            progress = False
            # One for each receiver and pass; a receiver that got a turn goes to the end.
            for receiver in list(self._waiting):
                if self._running.total() >= MAX_RUNNING:
                    break
                heap = self._waiting[receiver]
                if heap[0][0] > now_s or self._running[receiver] >= MAX_RUNNING_PER_HOST:
                    continue
                delivery = heapq.heappop(heap)[2]
                del self._waiting[receiver]
                if heap:
                    self._waiting[receiver] = heap
                self._running[receiver] += 1
                delivery.first_s = now_s if delivery.tries == 0 else delivery.first_s
                delivery.tries += 1
                started.append(delivery)
                progress = True
        return started

    def retry(self, delivery: Delivery, at_s: float) -> None:
        """Queue a running delivery for another try at ``at_s``."""
        self._end_try(delivery)
        self._wait(delivery, at_s)

    def remove(self, delivery: Delivery) -> None:
        """Remove a running delivery that succeeded or was given up."""
        self._end_try(delivery)
        self._hold(delivery, -1)

    def next_start_s(self) -> float | None:
        """Return the earliest time of a try that needs no other one to end; None if there is none."""
        if self._running.total() >= MAX_RUNNING:
            return None
        times = [heap[0][0] for each, heap in self._waiting.items() if self._running[each] < MAX_RUNNING_PER_HOST]
        return min(times, default=None)

    def _hold(self, delivery: Delivery, sign: int) -> None:
        """Count a delivery as held (1), or not any more (-1)."""
        self.held += sign
        self.size_bytes += sign * delivery.size_bytes
        self._held_of[delivery.receiver] += sign
        self._bytes_of[delivery.receiver] += sign * delivery.size_bytes
        if not self._held_of[delivery.receiver]:
            del self._held_of[delivery.receiver], self._bytes_of[delivery.receiver]

    def _wait(self, delivery: Delivery, at_s: float) -> None:
        heapq.heappush(self._waiting.setdefault(delivery.receiver, []), (at_s, self._next_order, delivery))
        self._next_order += 1

    def _end_try(self, delivery: Delivery) -> None:
        self._running[delivery.receiver] -= 1
        if not self._running[delivery.receiver]:
            del self._running[delivery.receiver]
