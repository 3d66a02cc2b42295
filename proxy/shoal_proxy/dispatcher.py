"""The loop that drives batching: it admits requests, closes batches when the policy says so, and settles answers.

Callback-driven: whatever may let a batch close (an arrival, an answer, a timer, the runtime's return) schedules a look
at the queue for the end of the current turn of the event loop, so that requests that arrived together leave together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from shoal_proxy.batching.batch import Batch, make_batch, merge, split, waiting_callers
from shoal_proxy.batching.pace import Pace
from shoal_proxy.batching.pending import Pending
from shoal_proxy.batching.policy import BatchLimits, Close, decide
from shoal_proxy.batching.queue import Deadlines, Queue, QueueLimits
from shoal_proxy.codecs.upstream import decode_answer, decode_failure, encode_batch
from shoal_proxy.connection import Response
from shoal_proxy.errors import (
    DeadlineExceeded,
    Draining,
    ModelFailed,
    Overloaded,
    ProxyError,
    RuntimeAway,
)
from shoal_proxy.lifecycle.drain import ACCEPTS, Phase
from shoal_proxy.batching.drain_rate import DrainRate
from shoal_proxy.metrics import Metrics
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.upstream import RuntimeLink

logger = logging.getLogger("shoal.proxy")

STUCK_MARGIN_S = 1.0
"""How long after its last caller's deadline a batch is given up: a stuck runtime must not hold its slot for ever."""


class Dispatcher:
    """Owns the queue and the batches in flight. All methods belong to the event loop's thread."""

    def __init__(
        self,
        link: RuntimeLink,
        metrics: Metrics,
        queue_limits: QueueLimits,
        batch_limits: BatchLimits,
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._batch_limits = batch_limits
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines()
        self._deadline_timer: tuple[float, asyncio.TimerHandle] | None = None
        self._delay_timer: asyncio.TimerHandle | None = None
        self._look_due = False
        self._batches: set[asyncio.Task[None]] = set()
        self._rate = DrainRate()
        self._pace = Pace()
        self._running: deque[tuple[Batch, float]] = deque()
        """The batches at the runtime, in the order in which it runs them, and when each was sent."""
        self._freed_s = 0.0
        """When the runtime last answered."""
        self.queue = Queue(queue_limits)
        self.in_flight_rows = 0
        self.phase = Phase.SERVING
        self.on_settled: Callable[[], None] = lambda: None
        link.on_change = self._runtime_changed

    @property
    def in_flight(self) -> int:
        """Return how many batches are at the runtime."""
        return len(self._running)

    @property
    def settled(self) -> bool:
        """Tell whether nothing waits and nothing runs."""
        return not self.queue.requests and not self._batches

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
            Overloaded: the queue is full.
        """
        reason = self.queue.full_reason(pending.rows, pending.size_bytes)
        if reason:
            what = f"{self.queue.rows} rows" if reason == "queue_rows" else f"{self.queue.size_bytes} bytes"
            retry_after_s = self._rate.retry_after_s(self.queue.rows + pending.rows)
            raise Overloaded(f"the queue is full ({what} wait)", reason=reason, retry_after_s=retry_after_s)
        self.queue.add(pending)
        self._deadlines.add(pending)
        if self._deadline_timer is None or pending.deadline_s < self._deadline_timer[0]:
            self._arm_deadline()
        self._look_soon()

    def cancel(self, pending: Pending) -> None:
        """Forget a request whose caller has gone; rows that already run are computed for nobody."""
        if not pending.resolved:
            pending.abandon()
            self._metrics.rejections["cancelled"] += 1
            self._leave(pending)

    def refuse_waiting(self, error: ProxyError) -> None:
        """Answer everything that still waits or runs with ``error``: the drain's time is up."""
        for group in list(self.queue.groups.values()):
            for pending in list(group.waiting):
                self.queue.remove(pending)
                pending.resolve(error)
        for task in self._batches:
            task.cancel()

    def _leave(self, pending: Pending) -> None:
        if self.queue.remove(pending) and self.settled:
            self.on_settled()

    def _look_soon(self) -> None:
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Close every batch that is due."""
        self._look_due = False
        if self._delay_timer is not None:
            self._delay_timer.cancel()
            self._delay_timer = None
        signature = self._link.signature
        if signature is None or not self._link.ready:
            return
        limits = self._limits(signature)
        while True:
            now_s = time.monotonic()
            decision = decide(
                self.queue, limits, in_flight=self.in_flight, now_s=now_s, ahead_s=self._send_ahead_s(limits)
            )
            if not isinstance(decision, Close):
                break
            self._send(make_batch(self.queue.take(decision.group, limits.max_rows)), signature, now_s)
        if decision.until_s is not None:
            self._delay_timer = self._loop.call_later(max(0.0, decision.until_s - now_s), self._look_soon)

    def _send_ahead_s(self, limits: BatchLimits) -> float | None:
        """Return when a partial batch should leave for the busy runtime; several executors have no one next end."""
        if len(self._running) != 1 or limits.in_flight > 1:
            return None
        batch, sent_s = self._running[0]
        return self._pace.send_ahead_s(batch.rows, sent_s=sent_s, freed_s=self._freed_s)

    def _limits(self, signature: ModelSignature) -> BatchLimits:
        own = self._batch_limits
        rows = own.max_rows if signature.max_batch_size is None else min(own.max_rows, signature.max_batch_size)
        return own if rows == own.max_rows else BatchLimits(rows, own.max_delay_s, own.in_flight)

    def _send(self, batch: Batch, signature: ModelSignature, now_s: float) -> None:
        observe = self._metrics.queue_seconds.observe
        for part in batch.slices:
            if part.start == 0:
                observe(now_s - part.pending.arrived_s)
        self._metrics.batch_rows.observe(batch.rows)
        self._metrics.rows += batch.rows
        self._running.append((batch, now_s))
        self.in_flight_rows += batch.rows
        task = self._loop.create_task(self._run(batch, signature))
        self._batches.add(task)
        task.add_done_callback(self._finished)

    def _release(self, batch: Batch) -> None:
        """The runtime is done with ``batch``: send the next one before anything else."""
        self._running = deque(entry for entry in self._running if entry[0] is not batch)
        self.in_flight_rows -= batch.rows
        self._freed_s = time.monotonic()
        self._look()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        if self.settled:
            self.on_settled()

    async def _run(self, batch: Batch, signature: ModelSignature) -> None:
        """Take one batch to the runtime and back; whatever happens, every caller gets an outcome."""
        closed_s = time.monotonic()
        alone = self.in_flight == 1
        try:
            try:
                response = await self._exchange(batch, signature)
            finally:
                self._release(batch)
            took_s = self._freed_s - closed_s
            # One turn of the loop puts the next batch on the wire; the answers of this one are split while it runs.
            await asyncio.sleep(0)
            forward_s = self._settle(batch, response, signature)
            if forward_s is not None:
                self._pace.observe(batch.rows, forward_s, took_s - forward_s if alone else None)
        except ProxyError as error:
            self._fail(batch, error)
        except asyncio.CancelledError:
            self._fail(batch, Draining("this replica had to stop before the answer came"))
        except Exception as error:
            logger.exception("event=batch_failed rows=%d", batch.rows)
            self._fail(batch, ModelFailed(f"internal error of the proxy: {type(error).__name__}: {error}"))
        self._metrics.batch_seconds.observe(time.monotonic() - closed_s)

    async def _exchange(self, batch: Batch, signature: ModelSignature) -> Response:
        merged = merge(batch, signature)
        self._metrics.elements += merged.elements
        self._metrics.padded_elements += merged.padded_elements
        header, tail = encode_batch(batch, merged.inputs, signature, binary=self._link.binary)
        sent_s = time.monotonic()
        budget_s = max(0.001, batch.deadline_s - sent_s)
        extra = [
            *_trace_headers(batch),
            *batch.key.headers,
            (b"x-request-timeout-ms", b"%d" % max(1, int(budget_s * 1000))),
        ]
        try:
            async with asyncio.timeout(budget_s + STUCK_MARGIN_S):
                response = await self._link.upstream.infer(header, tail, extra)
        except TimeoutError:
            raise DeadlineExceeded("the runtime did not answer in time") from None
        took_s = time.monotonic() - sent_s
        self._metrics.runtime_seconds.observe(took_s)
        self._rate.observe(batch.rows, took_s)
        return response

    def _settle(self, batch: Batch, response: Response, signature: ModelSignature) -> float | None:
        """Split the answer, and return what the runtime says its forward took."""
        if response.status != 200:
            raise decode_failure(response.status, response.body)
        header_length = response.headers.get(b"inference-header-content-length")
        result = decode_answer(response.body, header_length, signature)
        split(batch, result, signature)
        return result.forward_s

    def _fail(self, batch: Batch, error: ProxyError) -> None:
        for pending in waiting_callers(batch):
            self._leave(pending)
            pending.resolve(error)

    def _runtime_changed(self) -> None:
        logger.info("event=runtime_%s %s", "ready" if self._link.ready else "away", self._link.reason)
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
            waited = "in the queue" if pending.taken == 0 else "for the model's answer"
            self._leave(pending)
            pending.resolve(DeadlineExceeded(f"the deadline passed {waited}"))
        self._arm_deadline()


def _trace_headers(batch: Batch) -> list[tuple[bytes, bytes]]:
    """A batch of one request carries its trace headers as HTTP knows them; a shared one cannot."""
    trace = batch.slices[0].pending.trace
    if len(batch.slices) > 1 or not trace:
        return []
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in trace.items()]
