"""The loop that drives batching: it hands the brain what happens, sends what it forms, and settles answers.

Callback-driven: whatever may let a batch close (an arrival, an answer, a timer, the runtime's return) schedules a look
at the queue for the end of the current turn of the event loop, so that requests that arrived together leave together.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from shoal_proxy.alarm import Alarm
from shoal_proxy.batching.batch import Batch, make_batch, split, waiting_callers
from shoal_proxy.batching.batcher import Batcher, Running
from shoal_proxy.batching.coalescing import Coalescing
from shoal_proxy.batching.pending import Pending
from shoal_proxy.batching.policy import Wait
from shoal_proxy.batching.queue import Deadlines
from shoal_proxy.batching.recovery import Recovery
from shoal_proxy.batching.returns import Burst
from shoal_proxy.batching.suspects import Suspects
from shoal_proxy.batching.throughput import Throughput
from shoal_proxy.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    ModelFailed,
    Overloaded,
    ProxyError,
    RuntimeAway,
)
from shoal_proxy.exchange import Sent, exchange, result_of
from shoal_proxy.lifecycle.drain import ACCEPTS, Phase
from shoal_proxy.metrics import Metrics
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.recording import Recorder
from shoal_proxy.timing import batch_timing
from shoal_proxy.upstream import RuntimeLink

logger = logging.getLogger("shoal.proxy")


class Dispatcher:
    """Owns the brain and the batches in flight. All methods belong to the event loop's thread."""

    def __init__(
        self,
        link: RuntimeLink,
        metrics: Metrics,
        batcher: Batcher,
        *,
        idempotent: bool = False,
        coalesce: bool = False,
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines()
        self._deadline_timer: tuple[float, asyncio.TimerHandle] | None = None
        self._alarm = Alarm(self._loop, self._look_soon)
        self._look_due = False
        self._batches: set[asyncio.Task[None]] = set()
        self._again: deque[Batch] = deque()
        """Pieces of failed batches; they go before everything that waits."""
        self._recovery = Recovery(idempotent=idempotent)
        self._suspects = Suspects()
        self._coalescing = Coalescing() if coalesce else None
        self._served: ModelSignature | None = None
        self.batcher = batcher
        self.throughput = Throughput()
        self.recorder = Recorder()
        self.queue = batcher.queue
        self.burst: Burst | None = None
        """The callers being answered now."""
        self.in_flight_rows = 0
        self.phase = Phase.SERVING
        self.on_settled: Callable[[], None] = lambda: None
        link.on_change = self._runtime_changed

    @property
    def in_flight(self) -> int:
        """Return how many batches are at the runtime."""
        return len(self.batcher.running)

    @property
    def settled(self) -> bool:
        """Tell whether nothing waits and nothing runs."""
        return not (self.queue.requests or self._batches or any(batch.live for batch in self._again))

    @property
    def speaks_binary(self) -> bool:
        """Tell whether the runtime takes binary tensors."""
        return self._link.binary

    def signature(self) -> ModelSignature:
        """Return the signature of the model being served.

        Raises:
            RuntimeAway: the runtime is not ready.
            Draining: this replica takes no requests any more.
        """
        if self.phase not in ACCEPTS:
            raise Draining("this replica is draining; send the request again")
        if not self._link.ready or self._link.signature is None:
            raise RuntimeAway(f"the model is not ready: {self._link.reason}")
        return self._link.signature

    def submit(self, pending: Pending) -> None:
        """Queue ``pending``; its outcome is delivered exactly once, unless it is cancelled first.

        Raises:
            Overloaded: the queue is full, or so long that the answer would be late.
        """
        self.recorder.arrived(pending)
        if self._suspects.must_go_alone(pending, pending.arrived_s):
            pending.key = pending.key.alone()
        runs = self._coalescing.join(pending) if self._coalescing else pending
        if runs is not None and (reason := self.batcher.admit(runs, pending.arrived_s)):
            self._leave_shared(pending)
            raise self._overloaded(reason, pending.rows)
        if runs is None:
            self._metrics.coalesced_rows += pending.rows
        self._deadlines.add(pending)
        if self._deadline_timer is None or pending.deadline_s < self._deadline_timer[0]:
            self._arm_deadline()
        self._look_soon()

    def close(self) -> None:
        """Give back what the event loop watches for it."""
        self._alarm.close()

    def cancel(self, pending: Pending) -> None:
        """Forget a request whose caller has gone; rows that already run are computed for nobody."""
        if not pending.resolved:
            pending.abandon()
            self._metrics.rejections["cancelled"] += 1
            self._leave(pending)

    def refuse_waiting(self, error: ProxyError) -> None:
        """Answer everything that still waits or runs with ``error``: the drain's time is up."""
        for group in list(self.queue.groups.values()):
            self._refuse(list(group.requests()), error)
        while self._again:
            self._fail(self._again.popleft(), error)
        for task in self._batches:
            task.cancel()

    def _overloaded(self, reason: str, rows: int) -> Overloaded:
        what = {"queue_rows": f"{self.queue.rows} rows wait", "queue_bytes": f"{self.queue.size_bytes} bytes wait"}
        message = "the answer would come too late" if reason == "late" else f"the queue is full ({what[reason]})"
        retry_after_s = self.batcher.rate.retry_after_s(self.queue.rows + rows)
        return Overloaded(message, reason=reason, retry_after_s=retry_after_s)

    def _refuse(self, refused: Sequence[Pending], error: ProxyError) -> None:
        """Answer those who wait in the queue, perhaps for the rest of their rows."""
        _mark([pending for pending in refused if pending.taken > 0])
        self._drop(refused, error)

    def _drop(self, dropped: Iterable[Pending], error: ProxyError) -> None:
        for pending in dropped:
            self.queue.remove(pending)
            pending.resolve(error)
        if self.settled:
            self.on_settled()

    def _leave(self, pending: Pending) -> None:
        runs = self._leave_shared(pending) if self._coalescing else pending
        if runs is not None:
            self.queue.remove(runs)
        if self.settled:
            self.on_settled()

    def _leave_shared(self, pending: Pending) -> Pending | None:
        shared = self._coalescing.leave(pending) if self._coalescing else None
        if shared is not None:
            shared.abandon()
        return shared

    def _look_soon(self) -> None:
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Close every batch that is due."""
        self._look_due = False
        self._alarm.clear()
        signature = self._link.signature
        if signature is None or not self._link.ready:
            return
        while self._again and self.in_flight < self.batcher.limits.in_flight:
            self._send_again(self._again.popleft(), signature)
        if not self._again:
            self._form(signature)

    def _form(self, signature: ModelSignature) -> None:
        while True:
            now_s = time.monotonic()
            formed = self.batcher.next(now_s)
            if isinstance(formed, Wait):
                if formed.until_s is not None:
                    self._alarm.set(formed.until_s)
                return
            if formed.refused:
                self._refuse(formed.refused, self._overloaded("late", len(formed.refused)))
            if formed.running is not None:
                self._send(make_batch(formed.slices), formed.running, signature, now_s)

    def _send_again(self, batch: Batch, signature: ModelSignature) -> None:
        if batch.live:
            now_s = time.monotonic()
            self._send(batch, self.batcher.sending(batch.key, batch.rows, now_s), signature, now_s)

    def _send(self, batch: Batch, running: Running, signature: ModelSignature, now_s: float) -> None:
        if not batch.tries:
            observe = self._metrics.queue_seconds.observe
            for part in batch.slices:
                if part.start == 0:
                    part.pending.queued_s = now_s - part.pending.arrived_s
                    observe(part.pending.queued_s)
        self._metrics.batch_rows.observe(batch.rows)
        self._metrics.rows += batch.rows
        self.in_flight_rows += batch.rows
        task = self._loop.create_task(self._run(batch, running, signature))
        self._batches.add(task)
        task.add_done_callback(self._finished)

    def _release(self, running: Running) -> None:
        """The runtime is done with a batch: send the next one before anything else."""
        self.in_flight_rows -= running.rows
        self.batcher.released(running, time.monotonic())
        self._look()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        if self.settled:
            self.on_settled()

    async def _run(self, batch: Batch, running: Running, signature: ModelSignature) -> None:
        """Take one batch to the runtime and back; whatever happens, every caller gets an outcome."""
        try:
            try:
                sent = await exchange(batch, signature, self._link, self._metrics)
            finally:
                self._release(running)
            # One turn of the loop puts the next batch on the wire; the answers of this one are split while it runs.
            await asyncio.sleep(0)
            self._settle(batch, running, sent, signature)
        except ProxyError as error:
            self._try_again(batch, error)
        except asyncio.CancelledError:
            _mark(waiting_callers(batch))
            self._fail(batch, Draining("this replica had to stop before the answer came"))
        except Exception as error:
            logger.exception("event=batch_failed rows=%d", batch.rows)
            self._fail(batch, ModelFailed(f"internal error of the proxy: {type(error).__name__}: {error}"))
        self._metrics.batch_seconds.observe(time.monotonic() - running.sent_s)

    def _settle(self, batch: Batch, running: Running, sent: Sent, signature: ModelSignature) -> None:
        """Split the answer among its callers, and learn from what it took."""
        result = result_of(sent, signature)
        timing = batch_timing(
            batch,
            sent.merged,
            runtime_s=sent.answered_s - sent.sent_s,
            batch_s=time.monotonic() - running.sent_s - (sent.answered_s - sent.sent_s),
        )
        for part in batch.slices:
            part.pending.timing = timing
        self.burst = self.batcher.returns.burst(sent.answered_s)
        try:
            split(batch, result, signature)
        finally:
            self.burst = None
        self._recovery.succeeded(batch)
        self.batcher.learn(running, result.forward_s, sent.answered_s)
        now_s = time.monotonic()
        self.batcher.delivered(running, now_s)
        self.throughput.served(batch.rows, sent_s=running.sent_s, answered_s=now_s, cpu_s=time.thread_time())

    def _try_again(self, batch: Batch, error: ProxyError) -> None:
        fitting_rows = self._out_of_memory(batch) if isinstance(error, BatchTooLarge) else 0
        if error.may_have_run:
            _mark(waiting_callers(batch))
        pieces = self._recovery.again(batch, error, fitting_rows)
        if not pieces:
            self._fail(batch, error)
            return
        self._metrics.retries += len(pieces)
        logger.warning("event=batch_retried rows=%d pieces=%d error=%s", batch.rows, len(pieces), error.message)
        self._again.extendleft(reversed(pieces))
        self._look_soon()

    def _out_of_memory(self, batch: Batch) -> int:
        """Lower the limit, unless a single row is to blame; return what it was."""
        tables = self.batcher.tables
        before = tables.max_rows(batch.key)
        if batch.rows == 1 and batch.fitting_rows:
            tables.forgive(batch.key, batch.fitting_rows)
        cap = tables.ran_out_of_memory(batch.key, batch.rows)
        logger.warning("event=out_of_memory rows=%d next_at_most=%d", batch.rows, cap)
        return before

    def _fail(self, batch: Batch, error: ProxyError) -> None:
        callers = waiting_callers(batch)
        offended = batch.tries > 0 or batch.key.solo > 0
        if offended and callers and len(batch.slices) == 1 and isinstance(error, ModelFailed | InvalidRequest):
            self._suspects.forget_old(time.monotonic())
            self._suspects.failed(callers[0], time.monotonic())
            # As many rows as its first batch had, about: they ran twice to find it out.
            self.queue.shares.charged(callers[0].lane.share, batch.rows << batch.tries)
        _mark([part.pending for part in batch.slices if part.pending.taken > part.rows])
        self._drop(callers, error)

    def _runtime_changed(self) -> None:
        if self._link.ready:
            logger.info("event=runtime_ready")
        signature = self._link.signature
        if self._link.ready and signature is not None and signature != self._served:
            self._served = signature
            self.throughput = Throughput()
            self.batcher.serve(signature.max_batch_size, signature.allowed_batch_sizes, signature.measured)
        self._look_soon()

    def _arm_deadline(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer[1].cancel()
            self._deadline_timer = None
        soonest_s = self._deadlines.next_s()
        if soonest_s is not None:
            timer = self._loop.call_later(max(0.0, soonest_s - time.monotonic()), self._expire)
            self._deadline_timer = (soonest_s, timer)

    def _expire(self) -> None:
        self._deadline_timer = None
        for pending in self._deadlines.expired(time.monotonic()):
            runs = self._coalescing.standing_for(pending) if self._coalescing else pending
            pending.may_have_run = runs.may_have_run or runs.taken > 0
            waited = "for the model's answer" if pending.may_have_run else "in the queue"
            pending.resolve(DeadlineExceeded(f"the deadline passed {waited}"))
            self._leave(pending)
        self._arm_deadline()


def _mark(seen: Iterable[Pending]) -> None:
    """Remember that the runtime may have executed rows of these."""
    for pending in seen:
        pending.may_have_run = True
