"""Dispatcher between the requests, the scheduler and the runtime.

Callback-driven: each event that may close a batch (an arrival, a result, a timer, the runtime becoming ready) schedules
`_send_due` for the end of the current iteration of the event loop, so that requests that arrive together are sent
together.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from shoal_proxy.balance.orca import OrcaReport
from shoal_proxy.batching.batcher import RunningBatch
from shoal_proxy.batching.pending import NEVER_S, Delivery, Outcome, PendingRequest
from shoal_proxy.batching.policy import WaitUntil
from shoal_proxy.batching.scheduler import Scheduler
from shoal_proxy.dispatch.alarm import Alarm
from shoal_proxy.dispatch.candidate_link import CandidateLink
from shoal_proxy.dispatch.forwarding import RequestForwarder
from shoal_proxy.dispatch.link import BatchResponse, ModelLink
from shoal_proxy.dispatch.unread import UnreadResponses
from shoal_proxy.dispatch.unseen_runs import UnseenRuns
from shoal_proxy.errors import Draining, ModelFailed, ProxyError, RuntimeUnavailable
from shoal_proxy.explaining.load import expected_wait_s, utilization
from shoal_proxy.explaining.report import last_key
from shoal_proxy.lifecycle.drain import ACCEPTS, ProxyPhase
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.model.sizes import result_row_bytes
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.observe.recorder import Recorder
from shoal_proxy.observe.tracer import Tracer
from shoal_schema.interfaces.load import GraphState
from shoal_schema.interfaces.metrics import RejectionReason

logger = logging.getLogger(__name__)

_MAX_NAME = 128
"""Characters of a client's name in the log."""


class Dispatcher:
    """Sends the scheduler's batches and delivers results, in the event loop."""

    def __init__(
        self,
        link: ModelLink,
        metrics: Metrics,
        scheduler: Scheduler,
        forwarder: RequestForwarder | None = None,
        instance: bytes = b"",
        unread: UnreadResponses | None = None,
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._loop, self._send_soon)
        self._send_scheduled = False
        self._deadline_s = NEVER_S
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._unsent = unread or UnreadResponses()
        self._unsent.on_room = self._send_soon
        self._tasks: set[asyncio.Task[None]] = set()
        self._served: ModelSignature | None = None
        self.scheduler = scheduler
        self.unseen = UnseenRuns(link, scheduler, self._send_due, self._send_soon)
        self.instance = instance
        """Name of this replica, unique among its peers."""
        self._forwarder = forwarder
        """Forwards requests to peers; None if there are none."""
        if forwarder is not None:
            scheduler.forwards_late = True
            forwarder.on_ended = self.check_settled
            forwarder.on_returned = self.readmit
        self._candidates: CandidateLink | None = None
        self.comparing = False
        """Whether a rollout compares a candidate with this revision."""
        self.revision = b""
        """Revision of this pod, for the requests that it serves while ``comparing``."""
        self.tracer: Tracer | None = None
        """Traces batches with sampled requests; None if tracing is disabled."""
        self.recorder = Recorder()
        self.phase = ProxyPhase.SERVING
        self.on_settled: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] | None = None
        """Submits asynchronous requests after each batch; None while none waits."""
        link.on_change = self._runtime_changed

    @property
    def settled(self) -> bool:
        """Return whether no request is queued, running or forwarded."""
        given = self._forwarder is not None and self._forwarder.requests.has_forwarded
        given = given or (self._candidates is not None and self._candidates.has_forwarded)
        return self.scheduler.settled and not self._tasks and not given

    def set_candidates(self, candidates: CandidateLink) -> None:
        """Set the link to a candidate's pods; it has no effect while ``comparing`` is not set."""
        self._candidates = candidates

    @property
    def supports_binary(self) -> bool:
        """Return whether the runtime accepts binary tensors."""
        return self._link.binary

    @property
    def accepts_requests(self) -> bool:
        """Return whether requests are accepted: the runtime is ready, and the drain has not begun."""
        return self.phase in ACCEPTS and self._link.ready and self._link.signature is not None

    @property
    def graph_state(self) -> GraphState | None:
        """Return the state of the served graph; None if a model is served."""
        return self._link.graph_state

    def signature(self) -> ModelSignature:
        """Return the signature of the served model.

        Raises:
            RuntimeUnavailable: the runtime is not ready.
            Draining: this replica is draining.
        """
        signature = self._link.signature
        if signature is None or not self.accepts_requests:
            raise self._unavailable()
        return signature

    @property
    def precision(self) -> str:
        """Return the precision that the runtime chose by measurement; empty if it chose none."""
        signature = self._link.signature
        return "" if signature is None else signature.precision

    def signature_to_decode(self) -> ModelSignature:
        """Return the signature for decoding requests.

        With request forwarding it is also returned while only a peer can serve requests.

        Raises:
            RuntimeUnavailable: the runtime is not ready.
            Draining: this replica is draining.
        """
        signature = self._link.signature
        if signature is None or (self._forwarder is None and not self.accepts_requests):
            raise self._unavailable()
        return signature

    def _unavailable(self) -> ProxyError:
        if self.phase not in ACCEPTS:
            return Draining("this replica is draining. Retry the request")
        return RuntimeUnavailable(self._unready)

    @property
    def _unready(self) -> str:
        return f"the model is not ready: {self._link.reason}"

    def submit(self, pending: PendingRequest) -> None:
        """Queue or forward a request; deliver its outcome exactly once.

        Raises:
            Overloaded: the queue is full, or the request would miss its deadline.
            RuntimeUnavailable: the runtime is not ready.
            Draining: this replica is draining.
            CrashesRuntime: the request's rows have ended the runtime repeatedly.
            LimitReached: different rows of the request's client have.
        """
        if self.recorder.active:
            self.recorder.arrived(pending)
        if (refusal := self.scheduler.screen(pending, pending.arrived_s)) is not None:
            raise refusal
        if self.comparing:
            pending.revision = self.revision
            assert self._candidates is not None
            if self.accepts_requests and self._candidates.forward(pending, self._link.signature):
                return
        if self._forwarder is not None and self._forward_on_arrival(self._forwarder, pending):
            return
        self._admit(pending, pending.arrived_s)

    @property
    def runs_jobs(self) -> bool:
        """Return whether accepted requests may be queued: also in a drain, as they were accepted before it."""
        return self._link.ready and self._link.signature is not None and self.phase is not ProxyPhase.STOPPED

    def job_signature(self) -> ModelSignature:
        """Return the signature for decoding an accepted asynchronous request.

        Raises:
            RuntimeUnavailable: the runtime is not ready.
        """
        signature = self._link.signature
        if signature is None or not self.runs_jobs:
            raise RuntimeUnavailable(f"the model is not ready: {self._link.reason}")
        return signature

    def submit_job(self, pending: PendingRequest) -> None:
        """Queue an asynchronous request that was accepted before.

        Raises:
            Overloaded: the queue is full, or the request would miss its deadline.
            CrashesRuntime: as `submit`.
            LimitReached: as `submit`.
        """
        if self.recorder.active:
            self.recorder.arrived(pending)
        if (refusal := self.scheduler.screen(pending, pending.arrived_s)) is not None:
            raise refusal
        if self.comparing:
            pending.revision = self.revision
        self._admit(pending, pending.arrived_s)

    def _admit(self, pending: PendingRequest, now_s: float) -> None:
        rejection = self.scheduler.admit(pending, now_s)
        if rejection is not None:
            if self._forwarder is not None:
                if self._forward(self._forwarder, pending, rejection, self._link.signature):
                    return
                assert rejection.reason is not None
                self.scheduler.traffic.count_rejected(rejection.reason, pending.rows)
            raise rejection
        # One timer serves all deadlines, set to the earliest.
        if pending.expires_s < self._deadline_s:
            self._arm_deadline()
        self._send_soon()

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel a request whose client has disconnected."""
        if (self._forwarder is not None and self._forwarder.requests.cancel(pending)) or (
            self._candidates is not None and self._candidates.cancel(pending)
        ):
            self._metrics.rejected(RejectionReason.CANCELLED)
            return
        if self.scheduler.cancel(pending):
            self._link.abandoned(pending)
            self._metrics.rejected(RejectionReason.CANCELLED)
            self._deliver(())

    def reject_waiting(self, error: ProxyError) -> None:
        """Fail all queued, running and forwarded requests at the drain's time-out."""
        self._deliver(self.scheduler.reject_all(error, time.monotonic()))
        # A cancelled task fails its batch.
        for task in self._tasks:
            task.cancel()
        if self._forwarder is not None:
            self._forwarder.requests.fail_all()
        if self._candidates is not None:
            self._candidates.fail_all()

    def load(self, now_s: float, *, peer: bool = False) -> OrcaReport | None:
        """Return a report of this replica's load.

        Returns: None if this replica is stopping or not ready; for a ``peer`` also if the queue is full.
        """
        scheduler = self.scheduler
        if self.phase is not ProxyPhase.SERVING or not self._link.ready:
            return None
        if peer and not scheduler.has_room(last_key(scheduler.batcher), now_s):
            return None
        rows_per_s = scheduler.traffic.offered_rows_per_s
        return OrcaReport(expected_wait_s(scheduler, now_s), utilization(scheduler, now_s), rows_per_s)

    def close(self) -> None:
        """Cancel repeated runs of rows (row checks), and close the alarm."""
        self.unseen.close()
        self._alarm.close()

    def _send_soon(self) -> None:
        if not self._send_scheduled:
            self._send_scheduled = True
            self._loop.call_soon(self._send_due)

    def _send_due(self) -> None:
        """Send all batches that are due, and set the alarm for the next one."""
        self._send_scheduled = False
        if self._alarm.is_set:
            self._alarm.clear()
        signature = self._link.signature
        # `on_change` and `on_room` schedule the next call.
        if signature is None or not self._link.ready or self._unsent.full:
            return
        while True:
            now_s = time.monotonic()
            checking = self.phase is ProxyPhase.SERVING and self.scheduler.checks is not None
            if checking and (check := self.scheduler.next_check(now_s)) is not None:
                self.unseen.start_check(check, signature)
            step = self.scheduler.next_batch(now_s)
            if isinstance(step, WaitUntil):
                # The alarm also serves the next row check.
                until_s = min(step.until_s, self.scheduler.check_s) if checking else step.until_s
                if until_s < NEVER_S:
                    self._alarm.set(until_s)
                if self.on_room is not None:
                    self.on_room()
                return
            if step.rejected:
                self._deliver(step.rejected)
            if step.late:
                # Forward requests that would be late here; those that no peer accepts are rejected.
                assert self._forwarder is not None
                assert step.error is not None
                for pending in step.late:
                    if not self._forward(self._forwarder, pending, step.error, signature):
                        self._deliver(self.scheduler.reject(pending, step.error))
            if step.running is not None:
                self._send(step.running, signature)

    def _forward(
        self,
        forwarder: RequestForwarder,
        pending: PendingRequest,
        rejection: ProxyError,
        signature: ModelSignature | None,
    ) -> bool:
        if not forwarder.forward(pending, rejection, signature):
            return False
        self.scheduler.traffic.forwarded_rows += pending.rows
        return True

    def _forward_on_arrival(self, forwarder: RequestForwarder, pending: PendingRequest) -> bool:
        """Try to forward a request that would fail or be late on this replica.

        Raises:
            ProxyError: this replica cannot serve the request, and no peer accepts it.
        """
        if not self.accepts_requests:
            error = self._unavailable()
            if not self._forward(forwarder, pending, error, self._link.signature):
                if isinstance(error, RuntimeUnavailable):
                    self.scheduler.traffic.count_unread_rejection(RejectionReason.RUNTIME_AWAY)
                raise error
            self.scheduler.traffic.arrived_rows += pending.rows
            return True
        # Forwarded while there is time for it; if the peer does not run it, it comes back by `readmit`.
        if pending.forwarded or not self.scheduler.would_be_late(pending, pending.arrived_s):
            return False
        if not forwarder.forward(pending, None, self._link.signature):
            return False
        self.scheduler.traffic.arrived_rows += pending.rows
        self.scheduler.traffic.forwarded_rows += pending.rows
        return True

    def readmit(self, pending: PendingRequest) -> None:
        """Admit a request that another replica did not run, as if it had not been forwarded."""
        pending.returned_by_peer = True
        now_s = time.monotonic()
        try:
            # Its rows may have ended a runtime meanwhile, or its client's.
            if (refusal := self.scheduler.screen(pending, now_s)) is not None:
                raise refusal
            self._admit(pending, now_s)
        except ProxyError as error:
            self._deliver([pending.resolve(error)])

    def check_settled(self) -> None:
        """Call `on_settled` if no request is queued, running or forwarded."""
        if self.settled:
            self.on_settled()

    def _send(self, running: RunningBatch, signature: ModelSignature) -> None:
        batch = running.batch
        if not batch.attempts:
            # A retried batch was counted at its first try.
            observe = self._metrics.queue_seconds.observe
            for part in batch.slices:
                # A request that is split over batches is counted with its first part.
                if part.start == 0:
                    observe(part.pending.queued_s)
        self._metrics.batch_rows.observe(batch.rows)
        self._metrics.rows += batch.rows
        task = self._loop.create_task(self._run(running, signature))
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.check_settled()

    async def _run(self, running: RunningBatch, signature: ModelSignature) -> None:
        """Run one batch; every request gets an outcome, also after errors."""
        waiting: Sequence[Delivery] = ()
        try:
            try:
                sent = await self._link.exchange(running.batch, signature, self._metrics)
            finally:
                self.scheduler.record_finished(running, time.monotonic())
                self._send_due()  # the next batch has priority
            # One iteration of the loop sends it; the results of this batch are split while it runs.
            await asyncio.sleep(0)
            waiting = self._deliver_while_room(self._results(running, sent, signature))
            self.scheduler.record_delivered(running, time.monotonic(), time.thread_time())
            while waiting:
                await self._unsent.wait_for_room()
                waiting = self._deliver_while_room(waiting)
        except ProxyError as error:
            self._fail(running, error)
        except asyncio.CancelledError:
            stopped = Draining("this replica stopped before the result was ready")
            stopped.may_have_run = True
            if waiting:
                self._deliver(waiting)
            else:
                self._fail(running, stopped)
        except Exception as error:
            logger.exception("event=batch_failed rows=%d", running.rows)
            fault = ProxyError(f"internal error of the proxy: {type(error).__name__}: {error}")
            fault.may_have_run = True
            self._fail(running, fault)
        self._metrics.batch_seconds.observe(time.monotonic() - running.sent_s)

    def _results(self, running: RunningBatch, sent: BatchResponse, signature: ModelSignature) -> Sequence[Delivery]:
        """Return the outcomes of a batch's requests."""
        result = sent.result(signature)
        if self._forwarder is not None:
            self._forwarder.record_local_batch(failed=False)
        runtime_s = sent.completed_s - sent.sent_s
        batch_s = time.monotonic() - running.sent_s - runtime_s
        if self.tracer is not None:
            events = (("sent", sent.sent_s), ("answered", sent.completed_s))
            self.tracer.batch_ended(running.batch, running.sent_s, events, time.monotonic())
        timing = sent.timing(running.batch, batch_s)
        deliveries = self.scheduler.complete_batch(
            running, result, signature, completed_s=sent.completed_s, timing=timing
        )
        if self.comparing:
            assert self._candidates is not None
            self._candidates.batch_completed(running, sent, result, signature, deliveries)
        now_s = time.monotonic()
        self._metrics.returned(deliveries, now_s)
        self._metrics.executions.record(
            running.rows,
            len(deliveries),
            input_s=sent.sent_s - running.sent_s,
            infer_s=runtime_s,
            output_s=now_s - sent.completed_s,
            now_s=now_s,
        )
        return deliveries

    def _fail(self, running: RunningBatch, error: ProxyError) -> None:
        if self._forwarder is not None and isinstance(error, ModelFailed):
            self._forwarder.record_local_batch(failed=True)
        now_s = time.monotonic()
        if self.tracer is not None:
            self.tracer.batch_ended(running.batch, running.sent_s, (), now_s, failed=error.message)
        failure = self.scheduler.fail_batch(running, error, now_s)
        if failure.max_rows is not None:
            logger.warning("event=out_of_memory rows=%d next_at_most=%d", running.rows, failure.max_rows)
        if failure.offender is not None:
            # The fair-share header, which names other clients, may be a credential.
            account = failure.offender.client
            name = "" if account is None else account.name[:_MAX_NAME]
            logger.warning("event=client_paused caller=%r pause_s=%d", name, failure.pause_s)
        if failure.pieces:
            self._metrics.retries += failure.pieces
            logger.warning(
                "event=batch_retried rows=%d pieces=%d error=%s", running.rows, failure.pieces, error.message
            )
            self._send_soon()
        self._metrics.returned(failure.deliveries, now_s)
        if self.comparing:
            assert self._candidates is not None
            self._candidates.requests_ended(failure.deliveries)
        self._deliver(failure.deliveries)
        if failure.pieces and not self._link.ready:
            self._return_forwarded()

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        for pending, outcome in deliveries:
            _deliver_one(pending, outcome)
        self.check_settled()

    def _deliver_while_room(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Deliver results until the limit of unread responses is reached.

        Returns: The results that were not delivered.
        """
        unread = self._unsent
        for number, (pending, outcome) in enumerate(deliveries):
            if unread.full:
                return deliveries[number:]
            _deliver_one(pending, outcome)
        self.check_settled()
        return ()

    def _runtime_changed(self) -> None:
        if self._link.ready:
            logger.info("event=runtime_ready")
            self.scheduler.batcher.set_concurrency(self._link.concurrency)
        signature = self._link.signature
        if self._link.ready and signature is not None and signature != self._served:
            self._served = signature
            # A batch's rows are limited by the signature, and by the size of the results.
            most_rows = signature.max_batch_size
            if row_bytes := result_row_bytes(signature):
                by_results = max([self._unsent.rows(row_bytes), *signature.allowed_batch_sizes[:1]])
                most_rows = by_results if most_rows is None else min(by_results, most_rows)
            self.scheduler.set_model(most_rows, signature.allowed_batch_sizes, signature.measured)
            # Row checks start anew with each model.
            self.scheduler.verify(signature)
        if not self._link.ready:
            self._return_forwarded()
        self._send_soon()

    def _return_forwarded(self) -> None:
        """Reject the requests of other replicas that wait here without a runtime: those can serve them."""
        self._deliver(self.scheduler.reject_forwarded(RuntimeUnavailable(self._unready)))

    def _arm_deadline(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self._deadline_s = self.scheduler.next_deadline_s
        if self._deadline_s < NEVER_S:
            delay_s = max(0.0, self._deadline_s - time.monotonic())
            self._deadline_timer = self._loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        expired = self.scheduler.expire(time.monotonic())
        if self.comparing:
            assert self._candidates is not None
            # Those that waited in the queue say nothing about the model.
            self._candidates.requests_ended([each for each in expired if each[0].may_have_run])
        self._deliver(expired)
        self._arm_deadline()


def _deliver_one(pending: PendingRequest, outcome: Outcome) -> None:
    try:
        pending.deliver_outcome(outcome)
    except Exception:  # a failure must not affect the batch's other requests
        logger.exception("event=delivery_failed")
