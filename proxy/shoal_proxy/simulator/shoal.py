"""The proxy's own scheduler as a discipline of the simulator."""

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from shoal_proxy.batching.batch import BatchResult
from shoal_proxy.batching.batcher import Batcher, RunningBatch
from shoal_proxy.batching.pending import (
    NEVER_S,
    PLAIN_LANE,
    BatchKey,
    Delivery,
    LaneKey,
    PendingRequest,
    discard,
)
from shoal_proxy.batching.policy import BatchLimits, WaitUntil
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.returns import Burst
from shoal_proxy.batching.scheduler import Scheduler
from shoal_proxy.errors import ProxyError, RuntimeLost
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.simulator.engine import SendBatch, SimulatedRequest, SleepUntil
from shoal_schema.wire.datatypes import Array

_LARGE = 1 << 40
_MODEL = ModelSignature("simulated", ("1",), "", {}, {})


class _Inputs(dict[str, Array]):
    """The inputs of a simulated request, with a reference to the request.

    The copies that the scheduler executes for identical requests share the inputs, and are identified by the reference.
    """

    def __init__(self, request: SimulatedRequest) -> None:
        super().__init__(x=np.full((request.rows, 1), request.payload))
        self.request = request


class SchedulerDiscipline:
    """The proxy's `Scheduler` with simulated requests."""

    def __init__(
        self,
        limits: BatchLimits,
        *,
        objective_s: float = NEVER_S,
        max_queue_rows: int = _LARGE,
        idempotent: bool = False,
        coalesce: bool = False,
    ) -> None:
        batcher = Batcher(QueueLimits(max_queue_rows, _LARGE), limits, objective_s=objective_s)
        self.scheduler = Scheduler(batcher, idempotent=idempotent, coalesce=coalesce)
        self._requests: dict[PendingRequest, SimulatedRequest] = {}
        self._pendings: dict[SimulatedRequest, PendingRequest] = {}
        """Requests without an outcome, in both directions."""
        self._sent: list[tuple[Sequence[SimulatedRequest], RunningBatch]] = []
        """Batches without a result, as the engine and as the scheduler know them; several runtimes end in any order."""
        self._bursts: dict[SimulatedRequest, Burst] = {}

    def arrive(self, request: SimulatedRequest, now_s: float) -> Sequence[SimulatedRequest]:
        """Admit or reject a request (`Discipline`)."""
        # A closed loop: the client returns after the response to its previous request.
        if request.previous is not None and (burst := self._bursts.pop(request.previous, None)) is not None:
            burst.record_return(request.rows, now_s)
        pending = PendingRequest(
            inputs=_Inputs(request),
            rows=request.rows,
            size_bytes=0,
            arrived_s=now_s,
            deadline_s=request.deadline_s,
            deliver=discard,
            key=_key(request),
            lane=LaneKey(request.client.encode()) if request.client else PLAIN_LANE,
            soft_deadline_s=request.soft_deadline_s if request.own else NEVER_S,
        )
        if self.scheduler.screen(pending, now_s) is not None or self.scheduler.admit(pending, now_s) is not None:
            return (request,)
        self._requests[pending], self._pendings[request] = request, pending
        return ()

    @property
    def rows(self) -> int:
        """Return the number of waiting and running rows."""
        return self.scheduler.queue.rows + self.scheduler.in_flight_rows

    @property
    def row_s(self) -> float:
        """Return the time (s) that one more queued row takes, in full batches."""
        limits, tables = self.scheduler.batcher.limits, self.scheduler.batcher.tables
        return tables[BatchKey(shapes=(("", ()),))].p95_s(limits.max_rows) / limits.max_rows

    def expected_finish_s(self, request: SimulatedRequest, now_s: float) -> float:
        """Return when ``request`` would be answered if it arrived now."""
        wait_s = self.scheduler.batcher.expected_wait_s(_key(request), now_s)
        return now_s + wait_s + (request.rows - 1) * self.row_s

    def lose(self, now_s: float) -> Sequence[SimulatedRequest]:
        """Return all requests without an outcome; called when the pod dies."""
        return self._settled(self.scheduler.reject_all(RuntimeLost("the pod died"), now_s))

    def left(self, request: SimulatedRequest, now_s: float) -> None:
        """Cancel a request whose client has disconnected (`Discipline`)."""
        pending = self._pendings.pop(request)
        del self._requests[pending]
        self.scheduler.cancel(pending)

    def decide(self, now_s: float) -> SendBatch | SleepUntil:
        """Expire requests past their deadline, then form the next batch (`Discipline`)."""
        if self.scheduler.next_deadline_s <= now_s:
            return SendBatch(failed=self._settled(self.scheduler.expire(now_s)))
        step = self.scheduler.next_batch(now_s)
        if isinstance(step, WaitUntil):
            return SleepUntil(min(step.until_s, self.scheduler.next_deadline_s))
        refused = self._settled(step.rejected)
        if step.running is None:
            return SendBatch(rejected=refused)
        slices = step.running.batch.slices
        # The engine knows only the client's requests.
        batch = [cast(_Inputs, part.inputs).request for part in slices]
        self._sent.append((batch, step.running))
        return SendBatch(batch, refused, [part.rows for part in slices])

    def finished(self, batch: Sequence[SimulatedRequest], took_s: float, now_s: float) -> Sequence[SimulatedRequest]:
        """Complete a batch; return the requests that it answers (`Discipline`)."""
        running = self._ended(batch, now_s)
        result = BatchResult({"y": np.zeros(running.rows)}, forward_s=took_s)
        deliveries = self.scheduler.complete_batch(running, result, _MODEL, completed_s=now_s)
        self.scheduler.record_delivered(running, now_s)
        answered = self._settled(deliveries)
        for request, (pending, _) in zip(answered, deliveries, strict=True):
            if pending.burst is not None:
                pending.burst.add_response(request.rows)
                self._bursts[request] = pending.burst
        return answered

    def failed(self, batch: Sequence[SimulatedRequest], error: ProxyError, now_s: float) -> Sequence[SimulatedRequest]:
        """Fail a batch; return the requests that get its error (`Discipline`)."""
        running = self._ended(batch, now_s)
        return self._settled(self.scheduler.fail_batch(running, error, now_s).deliveries)

    def _ended(self, batch: Sequence[SimulatedRequest], now_s: float) -> RunningBatch:
        # By identity: equal lists may hold two parts of one request.
        number = next(number for number, (sent, _) in enumerate(self._sent) if sent is batch)
        _, running = self._sent.pop(number)
        self.scheduler.record_finished(running, now_s)
        return running

    def _settled(self, deliveries: Iterable[Delivery]) -> list[SimulatedRequest]:
        requests = [self._requests.pop(pending) for pending, _ in deliveries]
        for request in requests:
            del self._pendings[request]
        return requests


def _key(request: SimulatedRequest) -> BatchKey:
    return BatchKey(shapes=((request.shape, ()),))
