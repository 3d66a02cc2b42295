"""The held requests of one service, in order, and the assignment to pods.

Requests are forwarded in the order in which their headers arrived, once their bodies are complete. A pod gets at most
`ActivatorService.forwards` requests at a time, and the pod with the fewest is next. A pod that rejected a request is
skipped for `PAUSE_S`. A pod that missed a deadline gets one request at a time until it responds.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from math import ceil

from shoal_schema.interfaces.activator import ActivatorService

PAUSE_S = 0.25
"""Time to skip a pod after it rejected a request or connection, or missed a deadline."""


class HeldRequest:
    """A request that the activator holds. Times are monotonic seconds.

    Args:
        forward: called with a pod's address, each time the request is to be forwarded.
        end: called when the service is gone and the request will not be forwarded.
    """

    __slots__ = ("arrived_s", "end", "forward", "gone", "order", "pod", "refusals", "size_bytes")

    def __init__(self, arrived_s: float, forward: Callable[[str], object], end: Callable[[], object]) -> None:
        self.arrived_s = arrived_s
        self.forward = forward
        self.end = end
        self.size_bytes = 0
        self.order = -1
        """Position in the queue; -1 until the request is held."""
        self.pod = ""
        """Address of the pod that it is forwarded to; empty while it waits."""
        self.refusals = 0
        """Number of rejections by pods, including refused connections."""
        self.gone = False


class ServiceQueue:
    """The held requests of one service."""

    def __init__(self, service: ActivatorService) -> None:
        self.service = service
        self.held: set[HeldRequest] = set()
        """Waiting requests and those at a pod."""
        self.size_bytes = 0
        self._next_order = 0
        # A heap by order. Requests that left stay in it until they reach its top.
        self._waiting: list[tuple[int, HeldRequest]] = []
        self._at_pods: Counter[str] = Counter()
        self._paused_until_s: dict[str, float] = {}
        self._silent: set[str] = set()

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for a pod."""
        return len(self.held) - self._at_pods.total()

    def follow(self, service: ActivatorService) -> None:
        """Apply the operator's current entry for the service."""
        self.service = service
        self._paused_until_s = {pod: end for pod, end in self._paused_until_s.items() if pod in service.addresses}
        # Addresses that left the table may come back as other pods.
        self._silent &= set(service.addresses)

    def enter(self, held: HeldRequest) -> None:
        """Hold a request whose body may be incomplete.

        Its place in the order is fixed now.
        """
        held.order = self._next_order
        self._next_order += 1
        self.held.add(held)

    def enqueue(self, held: HeldRequest) -> None:
        """Queue a held request whose body is complete."""
        heapq.heappush(self._waiting, (held.order, held))

    def leave(self, held: HeldRequest) -> None:
        """Remove a request that was answered, rejected or cancelled."""
        if held.gone:
            return
        held.gone = True
        self.held.discard(held)
        self.size_bytes -= held.size_bytes
        self._free_slot(held)

    def release(self, now_s: float) -> list[tuple[HeldRequest, str]]:
        """Assign waiting requests to pods; return the requests to forward now."""
        released = []
        while self._first() is not None:
            pods = (pod for pod in self.service.addresses if self._paused_until_s.get(pod, now_s) <= now_s)
            free = [pod for pod in pods if self._at_pods[pod] < (1 if pod in self._silent else self.service.forwards)]
            if not free:
                break
            # Silent pods come last, then those with the most requests.
            pod = min(free, key=lambda each: (each in self._silent, self._at_pods[each]))
            held = heapq.heappop(self._waiting)[1]
            held.pod = pod
            self._at_pods[pod] += 1
            released.append((held, pod))
        return released

    def requeue(self, held: HeldRequest, now_s: float) -> None:
        """Requeue a request at its old position, and skip its pod for `PAUSE_S`."""
        if held.gone:
            return
        held.refusals += 1
        self._paused_until_s[held.pod] = now_s + PAUSE_S
        self._free_slot(held)
        heapq.heappush(self._waiting, (held.order, held))

    def record_timeout(self, pod: str, now_s: float) -> None:
        """Record that a pod did not respond to a request before its deadline."""
        if pod in self.service.addresses:
            self._silent.add(pod)
            self._paused_until_s[pod] = now_s + PAUSE_S

    def record_response(self, pod: str) -> None:
        """Record that a pod has responded to a request."""
        self._silent.discard(pod)

    def next_release_s(self, now_s: float) -> float | None:
        """Return when the next skipped pod may be tried again.

        Returns None if no request waits, or no pod is skipped.
        """
        ends = [end for end in self._paused_until_s.values() if end > now_s]
        return min(ends) if self._first() is not None and ends else None

    def retry_after_s(self, now_s: float) -> int:
        """Return the seconds until a pod is expected to be ready, for Retry-After."""
        if self.service.addresses:
            return 1
        start_s = self.service.start_s
        if start_s is None or not self.held:
            return ceil(start_s or 1.0) or 1
        since_s = now_s - min(held.arrived_s for held in self.held)
        return max(1, ceil(start_s - since_s))

    def _first(self) -> HeldRequest | None:
        while self._waiting and self._waiting[0][1].gone:
            heapq.heappop(self._waiting)
        return self._waiting[0][1] if self._waiting else None

    def _free_slot(self, held: HeldRequest) -> None:
        if held.pod:
            self._at_pods[held.pod] -= 1
            if not self._at_pods[held.pod]:
                del self._at_pods[held.pod]
            held.pod = ""
