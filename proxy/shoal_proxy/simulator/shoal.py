"""The proxy's own batching, as a discipline of the simulator."""

from collections import deque
from collections.abc import Sequence

from shoal_proxy.batching.batcher import Batcher, Running
from shoal_proxy.batching.pending import NEVER_S, BatchKey, Outcome, Pending
from shoal_proxy.batching.policy import BatchLimits, Wait
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.returns import Burst
from shoal_proxy.simulator.engine import Request, Send, Sleep

_LARGE = 1 << 40


class Shoal:
    """A `Batcher` with simulated requests."""

    def __init__(self, limits: BatchLimits, *, objective_s: float = NEVER_S, max_queue_rows: int = _LARGE) -> None:
        self.batcher = Batcher(QueueLimits(max_queue_rows, _LARGE), limits, objective_s=objective_s)
        self._requests: dict[int, Request] = {}
        self._sent: deque[Running] = deque()
        """In the order in which the device runs them."""
        self._bursts: dict[Request, Burst] = {}

    def arrive(self, request: Request, now_s: float) -> Sequence[Request]:
        """Ask for admission (`Discipline`)."""
        self._came_back(request, now_s)
        pending = Pending(
            inputs={},
            rows=request.rows,
            size_bytes=0,
            arrived_s=now_s,
            deadline_s=NEVER_S,
            deliver=_nowhere,
            key=BatchKey(shapes=((request.shape, ()),)),
            due_s=request.due_s if request.own else NEVER_S,
        )
        if self.batcher.admit(pending, now_s):
            return (request,)
        self._requests[id(pending)] = request
        return ()

    def decide(self, now_s: float) -> Send | Sleep:
        """Form the next batch (`Discipline`)."""
        formed = self.batcher.next(now_s)
        if isinstance(formed, Wait):
            return Sleep(NEVER_S if formed.until_s is None else formed.until_s)
        refused = [self._requests.pop(id(pending)) for pending in formed.refused]
        batch, counts = [], []
        for part in formed.slices:
            pending = part.pending
            whole = pending.taken == pending.rows
            batch.append(self._requests.pop(id(pending)) if whole else self._requests[id(pending)])
            counts.append(part.rows)
        if formed.running is not None:
            self._sent.append(formed.running)
        return Send(batch, refused, counts)

    def finished(self, batch: Sequence[Request], took_s: float, now_s: float) -> None:
        """Teach the batcher what the device took (`Discipline`)."""
        running = self._sent.popleft()
        self.batcher.released(running, now_s)
        self.batcher.learn(running, took_s, now_s)
        self.batcher.delivered(running, now_s)
        burst = self.batcher.returns.burst(now_s)
        for request in batch:
            burst.answered(request.rows)
            self._bursts[request] = burst

    def _came_back(self, request: Request, now_s: float) -> None:
        if request.previous is not None and (burst := self._bursts.pop(request.previous, None)) is not None:
            burst.came_back(request.rows, now_s)


def _nowhere(outcome: Outcome) -> None:
    """Deliver to nobody: the engine keeps the books."""
