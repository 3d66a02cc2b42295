"""Isolation of requests whose batch was lost with a runtime, such as rows that crash the process.

    a batch is lost         its payloads are suspects; an idempotent model's requests run again in batches of their own
    a suspect arrives       it waits here, and runs in a batch of its own
    it succeeds alone       it is no suspect any more
    it is lost alone, twice its payload is rejected for `ALONE_S`

One suspect runs at a time over all runtimes, and no other batch waits behind it at the same runtime. Of several
runtimes, the last ready one runs no suspect before half of the request's time has passed: another one may be back then,
and other requests are served in any case. So a payload that
crashes the runtime ends at most `LOSSES_PER_PAYLOAD` of them, whatever their number, and affects other requests only in
the first batch. Batches of more than `MAX_PIECES` requests are isolated in two steps, each of which costs one more.

All runtimes may end for another reason than a payload, such as their container's end. So copies of a payload that are
lost at the same time count once, and no suspect is sent within `SETTLE_S` after a loss.
"""

from collections import deque
from collections.abc import Sequence

from shoal_proxy.batching.batch import Batch, make_batch, unresolved_requests
from shoal_proxy.batching.batcher import Batcher, RunningBatch
from shoal_proxy.batching.pending import NEVER_S, PendingRequest, RequestSlice
from shoal_proxy.batching.policy import WaitUntil
from shoal_proxy.batching.recovery import SuspectPayloads
from shoal_proxy.errors import CrashesRuntime
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


class Quarantine:
    """Payloads of lost batches, and the batches of suspects that wait for their turn.

    Args:
        batcher: runs the batches, and has the queue of other requests.
    """

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._lost = SuspectPayloads()
        self.waiting: deque[Batch] = deque()
        self.settled_s = -NEVER_S
        """Time from which a suspect may be sent: `SETTLE_S` after the last loss."""
        self.yields = False
        """Whether a suspect ran last: with a single runtime, other requests and suspects take turns."""

    @property
    def has_unresolved(self) -> bool:
        """Return whether any request without an outcome waits here."""
        return any(batch.has_unresolved for batch in self.waiting)

    @property
    def is_full(self) -> bool:
        """Return whether no further suspect may wait."""
        return len(self.waiting) >= MAX_HELD

    @property
    def runs_suspect(self) -> bool:
        """Return whether a batch of a suspect is at the runtime."""
        return any(running.batch.suspect for running in self._batcher.running)

    @property
    def size_bytes(self) -> int:
        """Return the size of the inputs that wait here."""
        return sum([part.pending.size_bytes for batch in self.waiting for part in batch.slices])

    def screen(self, pending: PendingRequest, now_s: float) -> CrashesRuntime | None:
        """Mark an arriving request as suspect if its payload was lost; return the error if it is rejected."""
        losses = self._lost.offences(pending, now_s)
        if losses is None:
            return None
        pending.suspect = True
        if losses < LOST_ALONE:
            return None
        return CrashesRuntime(
            f"the runtime was lost {losses} times while it ran only this request, so it does not run again for some"
            " minutes. The log of the runtime states how it ended"
        )

    def is_suspect(self, pending: PendingRequest, now_s: float) -> bool:
        """Return whether the payload of ``pending`` was lost and has not succeeded since."""
        return self._lost.offences(pending, now_s) is not None

    def is_cleared(self, batch: Batch, now_s: float) -> bool:
        """Return whether the request of a waiting batch has not begun, and its payload has succeeded meanwhile."""
        part = batch.slices[0]
        pending = part.pending
        if batch.attempts or part.rows < pending.rows:
            return False
        return not (pending.dequeued_rows or self.is_suspect(pending, now_s))

    @property
    def last_start_s(self) -> float:
        """Return when the first waiting suspect runs even at the last ready runtime."""
        parts = self.waiting[0].slices if self.waiting else ()
        return min([(part.pending.arrived_s + part.pending.deadline_s) / 2 for part in parts], default=NEVER_S)

    def next_start_s(self, now_s: float) -> float:
        """Return the next time at which a waiting suspect may be sent without another event, or `NEVER_S`."""
        times = (self.settled_s, self.last_start_s) if self.waiting else ()
        return min([each for each in times if each > now_s], default=NEVER_S)

    def record_success(self, batch: Batch) -> None:
        """Clear the payload of a suspect that has succeeded. Call before its outcome is set."""
        part = batch.slices[0]
        if part.rows == part.pending.rows and len(batch.slices) == 1:
            self._lost.forgive(part.pending, part.inputs)

    def admit(self, pending: PendingRequest) -> RejectionReason | None:
        """Let an arriving suspect wait for its turn, or return the reason of its rejection."""
        if self.is_full:
            return RejectionReason.QUEUE_ROWS
        queue, held_bytes = self._batcher.queue, self.size_bytes
        if held_bytes and held_bytes + queue.size_bytes + pending.size_bytes > queue.limits.max_bytes:
            return RejectionReason.QUEUE_BYTES
        rejection = queue.rejection_reason(pending.rows, pending.size_bytes)
        if rejection is None:
            self._hold(pending)
        return rejection

    def _hold(self, pending: PendingRequest) -> None:
        """Let a request that has not begun wait for its turn, in batches that fit."""
        max_rows = self._batcher.tables.max_rows(pending.key)
        for start in range(pending.dequeued_rows, pending.rows, max_rows):
            rows = min(max_rows, pending.rows - start)
            self.waiting.append(make_batch([RequestSlice(pending, start, rows, pending.inputs)], suspect=True))

    def hold_again(self, batches: Sequence[Batch]) -> None:
        """Let parts of a lost batch wait, before all others."""
        self.waiting.extendleft(reversed(batches))

    def record_loss(self, running: RunningBatch, now_s: float) -> dict[PendingRequest, CrashesRuntime]:
        """Record the payloads of a batch that was lost with its runtime, and isolate waiting requests with the same.

        Returns: the waiting requests to reject, with their errors.
        """
        self._record_payloads(running.batch, now_s, running.sent_s)
        rejected: dict[PendingRequest, CrashesRuntime] = {}
        for held in self.waiting:
            for pending in unresolved_requests(held):
                if (refusal := self.screen(pending, now_s)) is not None:
                    rejected[pending] = refusal
        queue = self._batcher.queue
        for group in list(queue.groups.values()):
            for pending in list(group.requests()):
                refusal = self.screen(pending, now_s)
                if refusal is not None:
                    rejected[pending] = refusal
                elif pending.suspect and not (pending.dequeued_rows or self.is_full):
                    queue.remove(pending)
                    self._hold(pending)
        return rejected

    def _record_payloads(self, batch: Batch, now_s: float, sent_s: float) -> None:
        self._lost.forget_old(now_s)
        self.settled_s = now_s + SETTLE_S
        alone, left_bytes = len(batch.slices) == 1, _MAX_DIGEST_BYTES
        for part in batch.slices:
            left_bytes -= part.pending.size_bytes
            if left_bytes >= 0 or alone:
                # Not `pending.inputs`: a client that has disconnected may have sent the faulty rows.
                self._lost.failed(part.pending, now_s, inputs=part.inputs, times=int(alone), sent_s=sent_s)

    def next_batch(self, now_s: float) -> Batch | WaitUntil | None:
        """Return the next batch of suspects to start; None if none may run now and other batches may."""
        batcher, limits = self._batcher, self._batcher.limits
        while self.waiting and not self.runs_suspect:
            batch = self.waiting[0]
            live = [part for part in batch.slices if not part.pending.resolved]
            if live and self.is_cleared(batch, now_s):
                # An identical request has succeeded: it may share a batch.
                batcher.queue.add(live[0].pending)
                live = []
            if not live:
                self.waiting.popleft()
                continue
            if limits.alone and len(live) > 1:
                self.waiting.popleft()
                self.hold_again([make_batch([part], batch.attempts, suspect=True) for part in live])
                continue
            only_one = limits.in_flight == 1 < batcher.most_in_flight
            if now_s < self.settled_s or (only_one and now_s < self.last_start_s):
                return None
            if len(batcher.running) >= limits.in_flight:
                return WaitUntil()  # the first runtime that is idle is for the suspect
            if self.yields and batcher.queue.requests:
                return None
            self.waiting.popleft()
            self.yields = True
            for part in live:
                pending = part.pending
                if pending.dequeued_rows < part.stop:
                    pending.dequeued_rows = part.stop
                    pending.queued_s = now_s - pending.arrived_s
            return make_batch(live, batch.attempts, batch.fitting_rows, suspect=True)
        return None
