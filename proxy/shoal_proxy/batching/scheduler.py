"""The scheduler: admits, batches and retires requests, in one object without a clock.

Its methods receive events with their times, and return actions: batches to send, outcomes to deliver, or the time to
wait. It reads no clock and does no I/O. The proxy's `dispatcher` drives it with sockets, and the `simulator` drives the
same code with simulated times.

    admit ──▶ next_batch ──▶ record_finished ──▶ complete_batch ──▶ record_delivered
      │           ▲               │
    cancel        └─── pieces ────┴────────────▶ fail_batch
    expire

    next_check ──▶ record_finished ──▶ complete_check / fail_check: rows run again for no client (`row_checks`)

Every admitted request gets exactly one outcome from `next_batch`, `complete_batch`, `fail_batch`, `expire` or
`reject_all`, unless it is cancelled (`cancel`).
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from shoal_proxy.batching.batch import (
    Batch,
    BatchResult,
    check_rows,
    make_batch,
    split,
    unresolved_requests,
)
from shoal_proxy.batching.batcher import Batcher, RunningBatch
from shoal_proxy.batching.outcomes import Outcomes, mark_executed
from shoal_proxy.batching.pending import NEVER_S, BatchKey, Deadlines, Delivery, PendingRequest
from shoal_proxy.batching.policy import WaitUntil
from shoal_proxy.batching.quarantine import Quarantine
from shoal_proxy.batching.rates import Throughput, Traffic
from shoal_proxy.batching.recovery import BatchRetries, Coalescing, SuspectPayloads
from shoal_proxy.batching.row_checks.checks import RowChecks, RowViolation
from shoal_proxy.batching.row_checks.samples import SamplingRules
from shoal_proxy.batching.row_checks.suspicion import RowCheck
from shoal_proxy.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    Overloaded,
    ProxyError,
    RuntimeLost,
)
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.interfaces.metrics import RejectionReason


class SchedulerStep:
    """A batch to send, if any, and rejections to deliver before the next step."""

    __slots__ = ("error", "late", "rejected", "running")

    def __init__(
        self,
        running: RunningBatch | None,
        rejected: Sequence[Delivery] = (),
        late: Sequence[PendingRequest] = (),
        error: Overloaded | None = None,
    ) -> None:
        self.running = running
        self.rejected = rejected
        self.late = late
        """Requests that would be late on this replica and may be forwarded.

        If no peer accepts a request, it is rejected.
        """
        self.error = error
        """The error for ``late`` requests that no peer accepts."""


class BatchFailure(NamedTuple):
    """The outcomes and retries after a failed batch."""

    deliveries: Sequence[Delivery]
    """The error, for each request that gets it."""
    pieces: int = 0
    """Number of smaller or equal batches that are sent instead."""
    max_rows: int | None = None
    """New limit of rows for batches of its shape, where it ran out of memory."""
    offender: PendingRequest | None = None
    """A request that ended a runtime, whose client's requests are rejected from now on."""
    pause_s: float = 0.0


class Scheduler:
    """The scheduler of one model: admits, batches and retires requests."""

    def __init__(
        self, batcher: Batcher, *, idempotent: bool = False, coalesce: bool = False, checks: RowChecks | None = None
    ) -> None:
        self.batcher = batcher
        self.queue = batcher.queue
        self.throughput = Throughput()
        self.traffic = Traffic()
        self.forwards_late = False
        """Whether requests that would be late may be forwarded to a peer."""
        self.coalesced_rows = 0
        """Rows admitted that were not executed, since identical ones were."""
        self.waiting_job_rows = 0
        """Rows of asynchronous requests that wait outside of the queue, for the load report."""
        self.checks = checks
        """Verifies that rows of shared batches get their own results; None for no verification."""
        self._coalescing = Coalescing() if coalesce else None
        self._deadlines = Deadlines()
        self._recovery = BatchRetries(idempotent=idempotent)
        self._suspects = SuspectPayloads()
        self._quarantine = Quarantine(batcher)
        self._pieces: deque[Batch] = deque()
        """Parts of failed batches; they are sent before everything that waits."""
        self._unsettled: set[RunningBatch] = set()
        """Batches that were sent and neither completed nor failed: at the runtime, or just back from it."""
        self._outcomes = Outcomes(self.queue, self._unsettled, self._coalescing)

    @property
    def settled(self) -> bool:
        """Return whether no request waits or runs."""
        if self.queue.requests or self._unsettled or self._quarantine.has_unresolved:
            return False
        return not any(batch.has_unresolved for batch in self._pieces)

    @property
    def running(self) -> Sequence[RunningBatch]:
        """Return the clients' batches at the runtime."""
        return [running for running in self.batcher.running if running.check is None]

    @property
    def in_flight_rows(self) -> int:
        """Return the number of clients' rows at the runtime."""
        return sum([running.rows for running in self.batcher.running if running.check is None])

    @property
    def next_deadline_s(self) -> float:
        """Return the earliest deadline; `NEVER_S` if no request has one."""
        return self._deadlines.next_s

    def set_model(
        self,
        max_rows: int | None,
        allowed_sizes: tuple[int, ...] = (),
        measured: tuple[tuple[int, float], ...] = (),
    ) -> None:
        """Set a new model's row limit, padded batch sizes and warm-up batch times."""
        self.throughput = Throughput()
        self.batcher.set_model(max_rows, allowed_sizes, measured)

    def verify(self, signature: ModelSignature) -> None:
        """Start row checks of a model.

        A violation found earlier stays in effect when the runtime of the same model restarts.
        """
        if self.checks is not None:
            self.checks.set_model(signature.identity, SamplingRules(signature))
            self.batcher.isolate_requests(alone=self.checks.violated)

    def screen(self, pending: PendingRequest, now_s: float) -> ProxyError | None:
        """Return the error of a request that must not run, since rows of its client ended runtimes; None if it may."""
        clients = self._quarantine.clients
        if not clients.is_empty:
            clients.record_arrival(pending.client_name, now_s)
        return self._quarantine.screen(pending, now_s)

    def admit(self, pending: PendingRequest, now_s: float) -> Overloaded | None:
        """Queue ``pending`` and return None, or return the error of its rejection."""
        if self.batcher.limits.alone or self._suspects.must_run_alone(pending, now_s):
            # A key of its own shares no batch.
            pending.key = pending.key.alone()
        runs = self._coalescing.join(pending) if self._coalescing else pending
        if runs is None:
            self.coalesced_rows += pending.rows
        else:
            self.traffic.arrived_rows += pending.rows
            # A peer's request must not cost this replica's own requests their place: when all are full, no one gains.
            is_late_forward = pending.forwarded and self.would_be_late(pending, now_s)
            if pending.suspect or pending.on_trial:
                rejection = self._quarantine.admit(runs, suspect=pending.suspect)
            else:
                rejection = RejectionReason.LATE if is_late_forward else self.batcher.admit(runs, now_s)
            if rejection is not None:
                if self._coalescing:
                    self._coalescing.leave(pending)
                if not self.forwards_late:  # otherwise it counts once no peer accepts it
                    self.traffic.count_rejected(rejection, pending.rows)
                return self._overloaded(rejection, pending.rows)
        self._deadlines.add(pending)
        return None

    def would_be_late(self, pending: PendingRequest, now_s: float) -> bool:
        """Return whether admitting ``pending`` would make a response late.

        This is the response to ``pending`` itself, or to the first waiting request of the same batch key.
        """
        batcher, group = self.batcher, self.queue.groups.get(pending.key)
        if self._coalescing is not None:
            return False  # an identical request may already wait, and then this one costs nothing
        if group is None or (pending.soft_deadline_s == NEVER_S and batcher.objective_s == NEVER_S):
            return False
        finish_s = now_s + batcher.expected_wait_s(pending.key, now_s)
        return finish_s > min(batcher.soft_deadline_for(pending), group.head.soft_deadline_s)

    def has_room(self, key: BatchKey, now_s: float) -> bool:
        """Return whether another row of ``key`` would be in time without making waiting requests late."""
        group = self.queue.groups.get(key)
        if group is None:
            return True
        soft_deadline_s = min(group.head.soft_deadline_s, now_s + self.batcher.objective_s)
        return now_s + self.batcher.expected_wait_s(key, now_s) <= soft_deadline_s

    def cancel(self, pending: PendingRequest) -> bool:
        """Drop a disconnected client's request; return if it had no outcome yet.

        Rows of the request that still run count against the client's limits until their batch ends.
        """
        if pending.resolved:
            return False
        self._outcomes.keep_charged(pending)
        pending.abandon()
        self._outcomes.leave(pending)
        return True

    def next_batch(self, now_s: float) -> SchedulerStep | WaitUntil:
        """Return the next batch to send, or how long to wait. Parts of failed batches come first."""
        self.traffic.advance(now_s)
        step = self._next(now_s)
        self.traffic.set_held_rows(self.queue.rows + self.waiting_job_rows, self.in_flight_rows)
        return step

    def _next(self, now_s: float) -> SchedulerStep | WaitUntil:
        if self._pieces and (step := self._next_piece(now_s)) is not None:
            return step
        if not self._quarantine.is_empty and (suspect := self._quarantine.next_batch(now_s)) is not None:
            return suspect if isinstance(suspect, WaitUntil) else self._start(suspect, now_s)
        if len(self.batcher.running) >= self.batcher.limits.in_flight and self._quarantine.runs_suspect:
            return WaitUntil()  # a batch behind a suspect would be lost with it
        formed = self.batcher.next_batch(now_s)
        if isinstance(formed, WaitUntil):
            return WaitUntil(min(formed.until_s, self._quarantine.next_start_s(now_s)))
        self._quarantine.yields = False
        rejected: Sequence[Delivery] = ()
        late: Sequence[PendingRequest] = ()
        error: Overloaded | None = None
        if formed.rejected:
            error = self._overloaded(RejectionReason.LATE, len(formed.rejected))
            gone: Sequence[PendingRequest] = formed.rejected
            # Rejections of requests that may be forwarded are counted in `reject`.
            if self.forwards_late and self._coalescing is None:
                late = [pending for pending in gone if not pending.must_not_forward]
                gone = [pending for pending in gone if pending.must_not_forward]
            self.traffic.count_rejected(RejectionReason.LATE, sum([pending.rows for pending in gone]))
            rejected = self._outcomes.drop(gone, error)
        if formed.running is not None:
            self._unsettled.add(formed.running)
            for part in formed.running.batch.slices:
                if part.start == 0:
                    part.pending.queued_s = now_s - part.pending.arrived_s
        return SchedulerStep(formed.running, rejected, late, error)

    def reject(self, pending: PendingRequest, error: ProxyError) -> Sequence[Delivery]:
        """Reject a late request that no peer accepted."""
        self.traffic.count_rejected(RejectionReason.LATE, pending.rows)
        return self._outcomes.drop((pending,), error)

    def _next_piece(self, now_s: float) -> SchedulerStep | WaitUntil | None:
        """Return the next part of a failed batch; None if there is none."""
        while self._pieces:
            if len(self.batcher.running) >= self.batcher.limits.in_flight:
                return WaitUntil()
            batch = self._pieces.popleft()
            waiting = [part for part in batch.slices if not part.pending.resolved]
            if self.batcher.limits.alone and len(waiting) > 1:
                # A violation was found since it was split: one request each from now on.
                alone = [make_batch([part], batch.attempts, batch.fitting_rows) for part in waiting]
                self._pieces.extendleft(reversed(alone))
                continue
            if waiting:
                return self._start(make_batch(waiting, batch.attempts, batch.fitting_rows), now_s)
        return None

    def _start(self, batch: Batch, now_s: float) -> SchedulerStep:
        running = self.batcher.start_batch(batch, now_s)
        self._unsettled.add(running)
        return SchedulerStep(running)

    def record_finished(self, running: RunningBatch, now_s: float) -> None:
        """Record that the runtime has finished a batch, with any outcome."""
        self.batcher.record_finished(running, now_s)

    def complete_batch(
        self,
        running: RunningBatch,
        result: BatchResult,
        signature: ModelSignature,
        *,
        completed_s: float,
        timing: bytes = b"",
    ) -> list[Delivery]:
        """Return the outcomes of the requests that a batch completes.

        Args:
            running: the batch; `record_finished` was called before.
            result: the runtime's result.
            signature: signature of the model.
            completed_s: time at which the result arrived.
            timing: times of the batch, in the form of Server-Timing.

        Raises:
            ModelFailed: the result cannot be split. No request has an outcome; call `fail_batch`.
        """
        batch = running.batch
        for part in batch.slices:
            part.pending.timing = timing
        self._quarantine.clients.record_completion()
        if batch.suspect:
            self._quarantine.record_success(batch)
        deliveries = split(batch, result, signature)
        if self._coalescing:
            deliveries = self._outcomes.of_clients(deliveries)
        # Connections report to it when their clients send the next request.
        burst = self.batcher.returns.burst(completed_s)
        for pending, _ in deliveries:
            pending.burst = burst
        running.completed_s, running.forward_s = completed_s, result.forward_s
        if self.checks is not None and len(batch.slices) > 1 and self.checks.wants_rows:
            self.checks.sample_batch(batch, result, completed_s)
        self._recovery.record_success(batch)
        self.traffic.answered_rows += batch.rows
        self.traffic.batches += 1
        self._outcomes.batch_ended(running)
        return deliveries

    def record_delivered(self, running: RunningBatch, now_s: float, cpu_s: float = 0.0) -> None:
        """Update the estimates after the responses of a completed batch have left.

        Args:
            running: the batch.
            now_s: time at which its responses had been sent.
            cpu_s: processor time of the proxy's thread since it started.
        """
        self.batcher.record_delivered(running, now_s)
        self.throughput.record(running.rows, sent_s=running.sent_s, completed_s=now_s, cpu_s=cpu_s)

    def next_check(self, now_s: float) -> RunningBatch | None:
        """Return the row check to send now, as a batch without clients, if any."""
        checks, batcher = self.checks, self.batcher
        if checks is None:
            return None
        busy = not self.is_idle
        if not checks.is_possible(now_s, busy=busy):
            return None
        check = checks.next_check(batcher, now_s, load=self.device_load, busy=busy)
        if check is None:
            return None
        key, rows = check.samples[0].batch.group[0], len(check.samples)
        timeout_s = checks.timeout_s(batcher.tables[key].p95_s(rows))
        return batcher.start_batch(check.batch(now_s, timeout_s), now_s, check)

    @property
    def is_idle(self) -> bool:
        """Return whether no rows wait or run."""
        return not (self.queue.requests or self.batcher.running or self._pieces) and self._quarantine.is_empty

    @property
    def device_load(self) -> float:
        """Return the share of the device that clients need, at full batches."""
        shapes = self.batcher.tables.last_shapes
        if shapes is None:
            return 0.0
        row_s = self.batcher.row_s(BatchKey(shapes=shapes))
        return self.traffic.offered_rows_per_s * row_s / self.batcher.limits.in_flight

    def start_again(self, batch: Batch, now_s: float) -> RunningBatch:
        """Start a completed batch a second time, for no client."""
        return self.batcher.start_batch(batch, now_s, RowCheck([], 0))

    @property
    def check_s(self) -> float:
        """Return when to call `next_check` if no event occurs before, or `NEVER_S`."""
        if self.checks is None or self.queue.requests or self.batcher.running:
            return NEVER_S
        return self.checks.next_check_s()

    def complete_check(
        self, running: RunningBatch, result: BatchResult, signature: ModelSignature, *, completed_s: float
    ) -> RowViolation | None:
        """Evaluate a row check; after a violation, each batch holds one request.

        Raises:
            ModelFailed: the result cannot be split. Call `fail_check`.
        """
        assert self.checks is not None
        assert running.check is not None
        check_rows(running.batch, result, signature)
        took_s = completed_s - running.started_s if result.forward_s is None else result.forward_s
        violation = self.checks.complete(running.check, result, max(0.0, took_s))
        if violation is not None:
            self.batcher.isolate_requests(alone=True)
        return violation

    def fail_check(self, running: RunningBatch, now_s: float) -> None:
        """Record that a row check failed."""
        assert self.checks is not None
        assert running.check is not None
        self.checks.failed(running.check, now_s)

    def fail_batch(self, running: RunningBatch, error: ProxyError, now_s: float) -> BatchFailure:
        """Decide which rows of a failed batch are retried, and which requests get ``error``."""
        self._outcomes.batch_ended(running)
        batch = running.batch
        fitting_rows, max_rows = 0, None
        if isinstance(error, BatchTooLarge):
            tables = self.batcher.tables
            fitting_rows = tables.max_rows(batch.key)
            # A single row does not fit: its size was to blame, not the number of rows that failed first.
            if batch.rows == 1 and batch.fitting_rows:
                tables.restore_limit(batch.key, batch.fitting_rows)
            max_rows = tables.ran_out_of_memory(batch.key, batch.rows)
        if error.may_have_run:
            mark_executed(unresolved_requests(batch))
        rejected: list[Delivery] = []
        offender, pause_s = None, 0.0
        if batch.suspect and isinstance(error, ModelFailed | InvalidRequest):
            self._quarantine.record_survival(batch)
        if isinstance(error, RuntimeLost):
            effects = self._quarantine.record_loss(running, now_s)
            offender, pause_s = effects.offender, effects.pause_s
            for pending, refusal in effects.rejected.items():
                rejected.extend(self._outcomes.drop((pending,), refusal))
        pieces = self._recovery.batches_to_retry(batch, error, fitting_rows)
        if pieces:
            # In front and in their order: their requests have waited longest.
            if pieces[0].suspect:
                self._quarantine.hold_again(pieces)
            else:
                self._pieces.extendleft(reversed(pieces))
            return BatchFailure(rejected, len(pieces), max_rows, offender, pause_s)
        return BatchFailure([*rejected, *self._give_up(batch, error, now_s)], 0, max_rows, offender, pause_s)

    def expire(self, now_s: float) -> list[Delivery]:
        """Resolve the requests past their deadline, and return their outcomes.

        A forwarded request that is to be returned is rejected earlier, unless it has begun.
        """
        deliveries: list[Delivery] = []
        for pending in self._deadlines.expired(now_s):
            runs = self._coalescing.executed_for(pending) if self._coalescing else pending
            pending.may_have_run = runs.may_have_run or runs.dequeued_rows > 0
            if now_s < pending.deadline_s:
                if pending.may_have_run:
                    pending.return_s = NEVER_S
                    self._deadlines.add(pending)
                else:
                    deliveries.append(pending.resolve(self._overloaded(RejectionReason.LATE, pending.rows)))
                    self._outcomes.leave(pending)
                continue
            self._outcomes.keep_charged(pending)
            waited = "while the model ran" if pending.may_have_run else "in the queue"
            deliveries.append(pending.resolve(DeadlineExceeded(f"the deadline passed {waited}")))
            self._outcomes.leave(pending)
        return deliveries

    def reject_forwarded(self, error: ProxyError) -> list[Delivery]:
        """Resolve the forwarded requests that wait, with ``error``: the replicas that sent them can serve them.

        Requests of which any row is at the runtime are excluded.
        """
        at_runtime = {part.pending for running in self._unsettled for part in running.batch.slices}
        deliveries: list[Delivery] = []
        for pending in self._deadlines.forwarded():
            runs = self._coalescing.executed_for(pending) if self._coalescing else pending
            if runs in at_runtime:
                continue
            # Rows of a batch that the runtime never ran wait again, as a piece.
            again = sum([part.rows for piece in self._pieces for part in piece.slices if part.pending is runs])
            pending.may_have_run = runs.may_have_run or runs.dequeued_rows > again
            self._outcomes.keep_charged(pending)
            deliveries.append(pending.resolve(error))
            self._outcomes.leave(pending)
        return deliveries

    def reject_all(self, error: ProxyError, now_s: float) -> list[Delivery]:
        """Resolve all requests with ``error``, also those of running batches."""
        deliveries: list[Delivery] = []
        for running in self._unsettled:
            # Running batches first, then the queue, then parts of failed batches.
            requests = unresolved_requests(running.batch)
            mark_executed(requests)
            deliveries.extend(self._outcomes.resolve(requests, error))
        for running in list(self._unsettled):
            self._outcomes.batch_ended(running)
        for group in list(self.queue.groups.values()):
            deliveries.extend(self._outcomes.drop(list(group.requests()), error))
        for held in (self._pieces, self._quarantine.waiting, self._quarantine.trials):
            while held:
                deliveries.extend(self._give_up(held.popleft(), error, now_s))
        return deliveries

    def _overloaded(self, rejection: RejectionReason, rows: int) -> Overloaded:
        if rejection is RejectionReason.LATE:
            message = "the response would be late"
        elif rejection is RejectionReason.QUEUE_ROWS:
            message = f"the queue is full ({self.queue.rows} rows wait)"
        else:
            message = f"the queue is full ({self.queue.size_bytes} bytes wait)"
        retry_after_s = self.batcher.rate.retry_after_s(self.queue.rows + rows)
        return Overloaded(message, reason=rejection, retry_after_s=retry_after_s)

    def _give_up(self, batch: Batch, error: ProxyError, now_s: float) -> list[Delivery]:
        """Resolve a batch's requests with ``error``.

        A faulty request that failed in a batch of its own is also recorded as a suspect.
        """
        requests = unresolved_requests(batch)
        # A request is at fault only if it failed on its own, apart from the others of its batch.
        offended = batch.attempts > 0 or batch.key.solo > 0
        if offended and requests and len(batch.slices) == 1 and isinstance(error, ModelFailed | InvalidRequest):
            self._suspects.forget_old(now_s)
            self._suspects.failed(requests[0], now_s)
            # Charge about as many rows as its first batch had: they ran twice to isolate this request.
            self.queue.shares.charge_retry(requests[0].lane.share, batch.rows << batch.attempts)
        mark_executed([part.pending for part in batch.slices if part.pending.dequeued_rows > part.rows])
        return self._outcomes.resolve(requests, error)
