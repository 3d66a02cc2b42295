"""Who waits for one service, who is next, and to which pod.

First come, first forwarded: in the order in which requests came whole. A pod is given no more requests at a time than
keep it busy, the one with the fewest first; one that has just refused is left alone for a moment, and one that was
silent until a deadline is tried by one request at a time, until it answers.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from math import ceil

from shoal_schema.waiting import RoomService

PAUSE_S = 0.25
"""How long a pod is left alone after it refused a request or a connection, or said nothing."""


class Held:
    """One request. Times are monotonic seconds.

    Args:
        forward: told the address of a pod each time that it is its turn.
        end: told why it will never be its turn, where its service is no more.
    """

    __slots__ = ("arrived_s", "end", "forward", "gone", "order", "pod", "refusals", "size_bytes")

    def __init__(self, arrived_s: float, forward: Callable[[str], object], end: Callable[[], object]) -> None:
        self.arrived_s = arrived_s
        self.forward = forward
        self.end = end
        self.size_bytes = 0
        self.order = -1
        """Its place in the line; -1 until it has come whole."""
        self.pod = ""
        """Where it is being forwarded to; empty while it waits."""
        self.refusals = 0
        """How often a pod refused it, or the connection."""
        self.gone = False


class Line:
    """The requests of one service."""

    def __init__(self, service: RoomService) -> None:
        self.service = service
        self.held: set[Held] = set()
        """Those that wait, and those that a pod has."""
        self.size_bytes = 0
        self._next_order = 0
        self._waiting: list[tuple[int, Held]] = []
        self._at_pods: Counter[str] = Counter()
        self._paused_until_s: dict[str, float] = {}
        self._silent: set[str] = set()

    @property
    def waiting(self) -> int:
        """Return how many requests no pod has."""
        return len(self.held) - self._at_pods.total()

    def follow(self, service: RoomService) -> None:
        """Take what the operator tells of the service now."""
        self.service = service
        self._paused_until_s = {pod: end for pod, end in self._paused_until_s.items() if pod in service.addresses}
        self._silent &= set(service.addresses)

    def enter(self, held: Held) -> None:
        """Hold a request, whose body may still be on its way."""
        self.held.add(held)

    def stand(self, held: Held) -> None:
        """Give a request that has come whole its place."""
        held.order = self._next_order
        self._next_order += 1
        heapq.heappush(self._waiting, (held.order, held))

    def leave(self, held: Held) -> None:
        """Forget a request: it is answered, refused, or nobody waits for it any more."""
        if held.gone:
            return
        held.gone = True
        self.held.discard(held)
        self.size_bytes -= held.size_bytes
        self._release(held)

    def turns(self, now_s: float) -> list[tuple[Held, str]]:
        """Return who is forwarded now, and where; they are the pods' from here on."""
        found = []
        while self._next() is not None and (pod := self._free_pod(now_s)):
            held = heapq.heappop(self._waiting)[1]
            held.pod = pod
            self._at_pods[pod] += 1
            found.append((held, pod))
        return found

    def back(self, held: Held, now_s: float) -> None:
        """Take a request back that a pod did not run: it keeps its place, and that pod is left alone for a moment."""
        if held.gone:
            return
        held.refusals += 1
        self._paused_until_s[held.pod] = now_s + PAUSE_S
        self._release(held)
        heapq.heappush(self._waiting, (held.order, held))

    def was_silent(self, pod: str, now_s: float) -> None:
        """Note that a pod had a request until its time was over."""
        if pod in self.service.addresses:
            self._silent.add(pod)
            self._paused_until_s[pod] = now_s + PAUSE_S

    def has_answered(self, pod: str) -> None:
        """Note that a pod has answered a request."""
        self._silent.discard(pod)

    def next_look_s(self, now_s: float) -> float | None:
        """Return when a pod may be tried again for those who wait; None where only news can help."""
        ends = [end for end in self._paused_until_s.values() if end > now_s]
        return min(ends) if self._next() is not None and ends else None

    def retry_after_s(self, now_s: float) -> int:
        """Return when a caller who is refused should ask again: when a pod is ready, by the last start."""
        if self.service.addresses:
            return 1
        start_s = self.service.start_s
        if start_s is None or not self.held:
            return ceil(start_s or 1.0) or 1
        since_s = now_s - min(held.arrived_s for held in self.held)
        return max(1, ceil(start_s - since_s))

    def _next(self) -> Held | None:
        while self._waiting and self._waiting[0][1].gone:
            heapq.heappop(self._waiting)
        return self._waiting[0][1] if self._waiting else None

    def _free_pod(self, now_s: float) -> str:
        pods = (pod for pod in self.service.addresses if self._paused_until_s.get(pod, now_s) <= now_s)
        free = [pod for pod in pods if self._at_pods[pod] < (1 if pod in self._silent else self.service.forwards)]
        return min(free, key=lambda pod: (pod in self._silent, self._at_pods[pod]), default="")

    def _release(self, held: Held) -> None:
        if held.pod:
            self._at_pods[held.pod] -= 1
            if not self._at_pods[held.pod]:
                del self._at_pods[held.pod]
            held.pod = ""
