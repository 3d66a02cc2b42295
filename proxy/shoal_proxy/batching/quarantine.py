"""Isolation of requests whose batch was lost with a runtime, such as rows that crash the process.

    a batch is lost         its payloads are suspects; an idempotent model's requests run again in batches of their own.
                            Its clients are on trial (`client_suspicion`)
    a suspect arrives       it waits here, and runs in a batch of its own; so does a request of a client on trial
    it succeeds alone       its payload is no suspect any more
    it is lost alone, twice its payload is rejected for `ALONE_S`

One suspect runs at a time over all runtimes, and no other batch waits behind it at the same runtime. Of several
runtimes, the last ready one runs no suspect before half of the request's time has passed: another one may be back then,
and other requests are served in any case. So a payload that
crashes the runtime ends at most `LOSSES_PER_PAYLOAD` of them, whatever their number, and affects other requests only in
the first batch. Batches of more than `MAX_PIECES` requests are isolated in two steps, each of which costs one more.

The last ready runtime does run requests of clients on trial, unless a trial of the client was lost: most of these
clients have only shared a batch. For the same reason, their requests may be forwarded to other replicas.

All runtimes may end for another reason than a payload, such as their container's end. So copies of a payload that are
lost at the same time count once, and no suspect is sent within `SETTLE_S` after a loss.
"""

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from shoal_proxy.batching.batch import Batch, make_batch, unresolved_requests
from shoal_proxy.batching.batcher import Batcher, RunningBatch
from shoal_proxy.batching.client_suspicion import SuspectClients
from shoal_proxy.batching.pending import NEVER_S, PendingRequest, RequestSlice
from shoal_proxy.batching.policy import WaitUntil
from shoal_proxy.batching.recovery import SuspectPayloads
from shoal_proxy.errors import CrashesRuntime, LimitReached, ProxyError
from shoal_schema.interfaces.metrics import RejectionReason

LOST_ALONE = 2
"""Runtimes that a payload has ended in a batch of its own, after which it is rejected."""
LOSSES_PER_PAYLOAD = LOST_ALONE + 1
"""Most runtimes that one payload ends within `ALONE_S`: one in a shared batch, the others alone."""
MAX_HELD = 64
"""Most suspects that wait at a time; further ones are rejected, as by a full queue."""
SETTLE_S = 0.2
"""Time after a loss in which the proxy detects that other runtimes have ended, too."""
_MAX_DIGEST_BYTES = 1 << 26
"""Most bytes of a lost batch that are digested, which takes 0.1 s: requests beyond are no suspects."""


class LossEffects(NamedTuple):
    """The effects of a lost batch on waiting requests."""

    rejected: dict[PendingRequest, ProxyError]
    """Waiting requests to reject, with their errors."""
    offender: PendingRequest | None = None
    """A request whose client is paused from now on."""
    pause_s: float = 0.0


class Quarantine:
    """Payloads and clients of lost batches, and the batches of suspects that wait for their turn.

    Args:
        batcher: runs the batches, and has the queue of other requests.
    """

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._lost = SuspectPayloads()
        self.clients = SuspectClients()
        self.waiting: deque[Batch] = deque()
        """Batches of suspects."""
        self.trials: deque[Batch] = deque()
        """Batches of clients on trial; they start after those in `waiting` that may start."""
        self._lost_s = -NEVER_S
        """Time of the last loss."""
        self.yields = False
        """Whether a suspect ran last: with a single runtime, other requests and suspects take turns."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits here."""
        return not (self.waiting or self.trials)

    @property
    def has_unresolved(self) -> bool:
        """Return whether any request without an outcome waits here."""
        return any(batch.has_unresolved for held in (self.waiting, self.trials) for batch in held)

    @property
    def settled_s(self) -> float:
        """Return the time from which a suspect may be sent: `SETTLE_S` after the last loss."""
        return self._lost_s + SETTLE_S

    @property
    def runs_suspect(self) -> bool:
        """Return whether a batch of a suspect is at the runtime."""
        return any(running.batch.suspect for running in self._batcher.running)

    @property
    def size_bytes(self) -> int:
        """Return the size of the inputs that wait here."""
        held = (*self.waiting, *self.trials)
        return sum([part.pending.size_bytes for batch in held for part in batch.slices])

    def screen(self, pending: PendingRequest, now_s: float) -> ProxyError | None:
        """Mark a request that must run alone, by its payload or its client; return the error if it must not run."""
        losses = self._lost.offences(pending, now_s)
        if losses is not None and losses >= LOST_ALONE:
            return CrashesRuntime(
                f"the runtime was lost {losses} times while it ran only this request, so it does not run again for some"
                " minutes. The log of the runtime states how it ended"
            )
        pending.suspect, pending.on_trial = losses is not None, False
        if self.clients.is_empty or not self.clients.is_on_trial(pending.client_name, now_s):
            return None
        if self.clients.is_offender(pending.client_name, now_s):
            pending.suspect = True
        pending.on_trial = not pending.suspect
        pause_s = self.clients.pause_left_s(pending.client_name, now_s)
        if not pause_s:
            return None
        return LimitReached(
            "several requests of this client ended the runtime while each ran alone, so its requests are rejected for a"
            " time. The log of the runtime states how it ended",
            retry_after_s=ceil(pause_s),
        )

    def is_cleared(self, batch: Batch, now_s: float) -> bool:
        """Return whether the request of a waiting batch has not begun, and need not run alone any more."""
        pending = batch.slices[0].pending
        if batch.attempts or pending.dequeued_rows or self.screen(pending, now_s) is not None:
            return False
        return not (pending.suspect or pending.on_trial)

    @property
    def last_start_s(self) -> float:
        """Return when the first waiting suspect runs even at the last ready runtime."""
        parts = self.waiting[0].slices if self.waiting else ()
        return min([(part.pending.arrived_s + part.pending.deadline_s) / 2 for part in parts], default=NEVER_S)

    def next_start_s(self, now_s: float) -> float:
        """Return the next time at which a waiting suspect may be sent without another event, or `NEVER_S`."""
        times = () if self.is_empty else (self.settled_s, self.last_start_s)
        return min([each for each in times if each > now_s], default=NEVER_S)

    def record_success(self, batch: Batch) -> None:
        """Clear the payload of a suspect that has succeeded. Call before its outcome is set."""
        self.record_survival(batch)
        part = batch.slices[0]
        if part.rows == part.pending.rows and len(batch.slices) == 1:
            self._lost.forgive(part.pending, part.inputs)

    def record_survival(self, batch: Batch) -> None:
        """Record that the runtime has executed a batch of suspects, with a result or an error of the model."""
        if len(batch.slices) == 1:
            self.clients.record_success(batch.slices[0].pending.client_name)

    def admit(self, pending: PendingRequest, *, suspect: bool) -> RejectionReason | None:
        """Let an arriving request that must run alone wait for its turn, or return the reason of its rejection."""
        held, queue = self.waiting if suspect else self.trials, self._batcher.queue
        # A client on trial sends as many requests as before, and one trial is enough for most clients.
        most = MAX_HELD if suspect else queue.limits.max_rows - queue.rows
        if len(held) >= most:
            return RejectionReason.QUEUE_ROWS
        held_bytes = self.size_bytes
        if held_bytes and held_bytes + queue.size_bytes + pending.size_bytes > queue.limits.max_bytes:
            return RejectionReason.QUEUE_BYTES
        rejection = queue.rejection_reason(pending.rows, pending.size_bytes)
        if rejection is None:
            self._hold(pending, held)
        return rejection

    def _hold(self, pending: PendingRequest, held: deque[Batch]) -> None:
        """Let the next rows of a request wait for their turn, as many as fit into a batch."""
        rows = min(self._batcher.tables.max_rows(pending.key), pending.remaining_rows)
        part = RequestSlice(pending, pending.dequeued_rows, rows, pending.inputs)
        held.append(make_batch([part], suspect=True))

    def hold_again(self, batches: Sequence[Batch]) -> None:
        """Let parts of a lost batch wait, before all others."""
        self.waiting.extendleft(reversed(batches))

    def record_loss(self, running: RunningBatch, now_s: float) -> LossEffects:
        """Record the payloads and clients of a batch that was lost with its runtime.

        Waiting requests with the same payload, or of the same clients, run alone from now on.
        """
        # Another loss at the same time may be the cause of this one.
        caused = running.sent_s >= self._lost_s
        self._lost_s = now_s
        offends = self._record_payloads(running.batch, now_s, running.sent_s) and caused
        if running.batch.suspect and len(running.batch.slices) == 1 and not offends:
            return LossEffects(self._isolate(now_s))  # says nothing of other payloads of its client
        clients = {part.pending.client_name: part.pending for part in running.batch.slices}
        for name, pending in clients.items():
            pause_s = self.clients.record_loss(name, now_s, sent_s=running.sent_s, offends=offends)
            if pause_s:
                return LossEffects(self._isolate(now_s), pending, pause_s)
        return LossEffects(self._isolate(now_s))

    def _isolate(self, now_s: float) -> dict[PendingRequest, ProxyError]:
        """Hold the queued requests that are suspects now; return the waiting requests to reject, with their errors."""
        rejected: dict[PendingRequest, ProxyError] = {}
        held = [batch for batch in (*self.waiting, *self.trials) if batch.has_unresolved]
        self.waiting.clear()
        self.trials.clear()
        for batch in held:
            requests = unresolved_requests(batch)
            for pending in requests:
                if (refusal := self.screen(pending, now_s)) is not None:
                    rejected[pending] = refusal
            # It may have become a suspect since it began to wait.
            (self.waiting if batch.attempts or requests[0].suspect else self.trials).append(batch)
        queue = self._batcher.queue
        for group in list(queue.groups.values()):
            for pending in list(group.requests()):
                refusal = self.screen(pending, now_s)
                if refusal is not None:
                    rejected[pending] = refusal
                elif (pending.suspect or pending.on_trial) and not pending.dequeued_rows:
                    queue.remove(pending)
                    self._hold(pending, self.waiting if pending.suspect else self.trials)
        return rejected

    def _record_payloads(self, batch: Batch, now_s: float, sent_s: float) -> bool:
        """Record the payloads of a lost batch; return whether one was isolated, for the first time."""
        self._lost.forget_old(now_s)
        alone, left_bytes, first = len(batch.slices) == 1, _MAX_DIGEST_BYTES, False
        for part in batch.slices:
            left_bytes -= part.pending.size_bytes
            if left_bytes >= 0 or alone:
                first = self._lost.failed(
                    part.pending,
                    now_s,
                    # Not `pending.inputs`: a client that has disconnected may have sent the faulty rows.
                    inputs=part.inputs,
                    times=int(alone),
                    sent_s=sent_s,
                    isolated=alone and batch.suspect,
                )
        return first

    def next_batch(self, now_s: float) -> Batch | WaitUntil | None:
        """Return the next batch of suspects to start; None if none may run now and other batches may."""
        batcher, limits = self._batcher, self._batcher.limits
        if self.runs_suspect:
            return None
        only_one = limits.in_flight == 1 < batcher.most_in_flight
        for held in (self.waiting, self.trials):
            batch = self._first(held, now_s)
            if batch is None or (held is self.waiting and only_one and now_s < self.last_start_s):
                continue
            if now_s < self.settled_s:
                return None
            if len(batcher.running) >= limits.in_flight:
                return WaitUntil()  # the first runtime that is idle is for the suspect
            if self.yields and batcher.queue.requests:
                return None
            held.popleft()
            self.yields = True
            started = _started(batch, now_s)
            pending = started.slices[0].pending
            if not batch.attempts and pending.remaining_rows:
                self._hold(pending, held)
            return started
        return None

    def _first(self, held: deque[Batch], now_s: float) -> Batch | None:
        """Return the first batch of ``held`` with a suspect; requests that are none any more return to the queue."""
        while held:
            batch = held[0]
            live = [part for part in batch.slices if not part.pending.resolved]
            if live and self.is_cleared(batch, now_s):
                # An identical request has succeeded, or others of its client: it may share a batch.
                self._batcher.queue.add(live[0].pending)
                live = []
            if not live:
                held.popleft()
            elif self._batcher.limits.alone and len(live) > 1:
                held.popleft()
                self.hold_again([make_batch([part], batch.attempts, suspect=True) for part in live])
            else:
                return batch
        return None


def _started(batch: Batch, now_s: float) -> Batch:
    """Return the rest of a batch whose requests leave the quarantine."""
    live = [part for part in batch.slices if not part.pending.resolved]
    for part in live:
        pending = part.pending
        if pending.dequeued_rows < part.stop:
            pending.dequeued_rows = part.stop
            pending.queued_s = now_s - pending.arrived_s
    return make_batch(live, batch.attempts, batch.fitting_rows, suspect=True)
