"""Retries of failed batches, isolation of faulty requests, and coalescing of identical requests.

Retries after a batch failed as a whole:

    failure                        retried
    the device ran out of memory   two batches, each with half of the rows; the row limit is lowered
    the model failed, or rejected  two batches, each with half of the requests: valid requests succeed, and the faulty
                                   one is isolated. After cancellations, first one batch of the remaining requests
    the runtime never ran it       the same batch, once
    the runtime died meanwhile     a batch for each request, or for each of `MAX_PIECES` parts, one at a time: the rows
                                   of one may have ended it (`quarantine`). Only if the model is idempotent
    anything else                  nothing

A request that is alone in its batch is retried at most once. A suspect that certainly did not run is retried up to
`MAX_UNSENT` times, since the runtime that it was sent to may just have ended.

Retries cost device time, and a model that fails every batch must not double the load of its device. So retries have a
budget, to which each successful request adds. Isolating a faulty request takes several tries, and continues as long as
other requests succeed. A rejected batch (`InvalidRequest`) costs no device time and states that one request is wrong.
Isolating that request ignores the budget, so that no other request is rejected for its fault.

Suspects: a payload that fails repeatedly runs alone for a while. A payload is recognized by a digest of its bytes.
Digests are computed only while there are suspects, and only of requests that look like one: the same rows, bytes and
first values.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal_proxy.batching.batch import Batch, make_batch
from shoal_proxy.batching.pending import BatchKey, Delivery, LaneKey, Outcome, PendingRequest, RequestSlice
from shoal_proxy.errors import BatchTooLarge, InvalidRequest, ModelFailed, NotExecuted, ProxyError, RuntimeLost
from shoal_schema.wire.datatypes import Array

MAX_PIECES = 64
"""Most batches into which a lost batch is divided."""
MAX_UNSENT = 8
OFFENCES = 2
"""Failures after which a payload runs alone."""
ALONE_S = 300.0
"""Time to remember a payload after its last failure."""
_MAX_RECORDS = 1024
_FIRST_VALUES = 8
_Traits = tuple[int, int, object]
"""Features of a payload that cost nothing to read."""


class _Record(NamedTuple):
    traits: _Traits
    times: int
    last_s: float
    isolated: bool
    """Whether it has failed after it was isolated, and not just alone by chance."""


def payload_digest(pending: PendingRequest, inputs: Mapping[str, Array] | None = None) -> bytes:
    """Return a digest of a request's rows and lengths.

    ``inputs`` are its rows where the request has an outcome, and has dropped them.
    """
    digester = hashlib.blake2b(digest_size=16)
    for name, array in (inputs or pending.inputs).items():
        digester.update(f"{name} {array.dtype} {array.shape} {list(pending.lengths.get(name, ()))} ".encode())
        if array.dtype.hasobject:
            for element in array.ravel().tolist():
                digester.update(len(element).to_bytes(8, "little"))
                digester.update(element)
        else:
            digester.update(array.tobytes())
    return digester.digest()


class SuspectPayloads:
    """Payloads of requests that failed in a batch of their own.

    Each payload has the number and the last time of its failures. The oldest payloads are dropped first.
    """

    def __init__(self) -> None:
        self._failed: OrderedDict[bytes, _Record] = OrderedDict()
        self._traits: Counter[_Traits] = Counter()

    def failed(
        self,
        pending: PendingRequest,
        now_s: float,
        *,
        inputs: Mapping[str, Array] | None = None,
        times: int = 1,
        sent_s: float | None = None,
        isolated: bool = False,
    ) -> bool:
        """Record that ``pending`` failed; return whether its payload has failed isolated for the first time.

        Args:
            pending: the request.
            now_s: monotonic time (s).
            inputs: its rows, if the request has an outcome.
            times: failures to add: 1 for a batch without other requests, 0 if others may have caused it.
            sent_s: time at which its batch was sent, if batches that ran at the same time have one cause: a failure of
                a batch that was sent before the last failure adds none.
            isolated: whether it ran alone because its payload or its client was a suspect.
        """
        mark, traits = payload_digest(pending, inputs), _traits_of(pending, inputs)
        before = self._failed.pop(mark, None)
        if before is not None and sent_s is not None and sent_s < before.last_s:
            times, isolated = 0, False
        known = before is not None and before.isolated
        earlier = 0 if before is None else before.times
        self._failed[mark] = _Record(traits, earlier + times, now_s, known or isolated)
        if before is None:
            self._traits[traits] += 1
        if len(self._failed) > _MAX_RECORDS:
            self._forget(next(iter(self._failed)))
        return isolated and not known

    def must_run_alone(self, pending: PendingRequest, now_s: float) -> bool:
        """Return whether the payload of ``pending`` must run in its own batch.

        True if the payload failed repeatedly, and last within `ALONE_S`.
        """
        times = self.offences(pending, now_s)
        return times is not None and times >= OFFENCES

    def offences(self, pending: PendingRequest, now_s: float) -> int | None:
        """Return how often the payload of ``pending`` failed; None if it did not within `ALONE_S`."""
        # The digest is computed only of requests that look like a suspect.
        if not self._traits or _traits_of(pending) not in self._traits:
            return None
        record = self._failed.get(payload_digest(pending))
        return record.times if record is not None and now_s - record.last_s < ALONE_S else None

    def forgive(self, pending: PendingRequest, inputs: Mapping[str, Array]) -> None:
        """Drop the payload of a request, whose rows are ``inputs``."""
        if (mark := payload_digest(pending, inputs)) in self._failed:
            self._forget(mark)

    def forget_old(self, now_s: float) -> None:
        """Drop expired payloads."""
        while self._failed and now_s - next(iter(self._failed.values())).last_s >= ALONE_S:
            self._forget(next(iter(self._failed)))

    def _forget(self, mark: bytes) -> None:
        traits = self._failed.pop(mark).traits
        self._traits[traits] -= 1
        if not self._traits[traits]:
            del self._traits[traits]


def _traits_of(pending: PendingRequest, inputs: Mapping[str, Array] | None = None) -> _Traits:
    first = next(iter((inputs or pending.inputs).values())).flat[:_FIRST_VALUES]
    if first.dtype.hasobject:  # elements may be large, such as pictures: compare their first bytes
        return pending.rows, pending.size_bytes, tuple(element[:_FIRST_VALUES] for element in first)
    return pending.rows, pending.size_bytes, first.tobytes()


_Mark = tuple[BatchKey, LaneKey, float, bytes]
"""Requests with equal marks are identical: key, lane, time to live (s), digest of the inputs."""


class Coalescing:
    """Sets of identical requests, each with the request executed for the set.

    The executed request is a copy that belongs to no client, so cancelling a request does not affect the others.
    Requests that differ in class, priority or time to live are not coalesced, since these decide order and rejection. A
    request that arrives after execution began is not coalesced either, since its deadline is later than the one sent to
    the runtime.
    """

    def __init__(self) -> None:
        self._joinable: dict[_Mark, PendingRequest] = {}
        """Executed requests that have not begun, as of the last look-up."""
        self._requests: dict[PendingRequest, list[PendingRequest]] = {}
        """Clients' requests by executed request."""
        self._executed: dict[PendingRequest, PendingRequest] = {}
        """Executed request by client's request."""
        self._marks: dict[PendingRequest, _Mark] = {}
        """Mark by executed request."""

    @property
    def empty(self) -> bool:
        """Return whether no request is tracked."""
        return not (self._joinable or self._requests or self._executed or self._marks)

    def join(self, request: PendingRequest) -> PendingRequest | None:
        """Track ``request``, and return the copy to execute for it.

        Returns None if the copy for an earlier identical request is still waiting: its result serves both.
        """
        time_to_live_s = round(request.soft_deadline_s - request.arrived_s, 3)
        mark = (request.key, request.lane, time_to_live_s, payload_digest(request))
        shared = self._joinable.get(mark)
        if shared is not None and not shared.dequeued_rows:
            # The executed request lives as long as any of its clients waits.
            shared.deadline_s = max(shared.deadline_s, request.deadline_s)
            self._requests[shared].append(request)
            self._executed[request] = shared
            request.inputs = {}  # never read again, and outside the queue's bound of bytes
            return None
        # The first of its kind, or the earlier one has begun.
        shared = self._joinable[mark] = request.copy_without_client()
        self._requests[shared] = [request]
        self._executed[request] = shared
        self._marks[shared] = mark
        return shared

    def leave(self, request: PendingRequest) -> PendingRequest | None:
        """Remove a cancelled request from its set of identical requests.

        Returns:
            The executed copy to cancel if no other request needs it, otherwise None.
        """
        shared = self._executed.pop(request, None)
        if shared is None:
            return None
        requests = self._requests[shared]
        requests.remove(request)
        if requests:
            return None
        self._forget(shared)
        return shared

    def executed_for(self, request: PendingRequest) -> PendingRequest:
        """Return the request that is executed for ``request``; ``request`` if it is not coalesced."""
        return self._executed.get(request, request)

    def requests_sharing(self, shared: PendingRequest) -> Sequence[PendingRequest]:
        """Return the requests for which ``shared`` is executed."""
        return self._requests.get(shared, ())

    def deliveries(self, shared: PendingRequest, outcome: Outcome) -> list[Delivery]:
        """Resolve the request ``shared`` and all that wait for its result.

        Returns: Their outcomes.
        """
        deliveries: list[Delivery] = []
        for request in self._forget(shared):
            del self._executed[request]
            request.timing = shared.timing
            request.may_have_run = shared.may_have_run
            # It waited from its own arrival until the executed request was sent.
            request.queued_s = max(0.0, shared.arrived_s + shared.queued_s - request.arrived_s)
            deliveries.append(request.resolve(outcome))
        return deliveries

    def _forget(self, shared: PendingRequest) -> list[PendingRequest]:
        mark = self._marks.pop(shared, None)
        if mark is not None and self._joinable.get(mark) is shared:
            del self._joinable[mark]
        return self._requests.pop(shared, [])


MAX_TRIES = 256
EARNED_TRIES = 4
"""Added to the budget by each successful request.

One fault in two requests costs 62 tries for 16 valid requests of a batch of 32.
"""


class BatchRetries:
    """The decision on retries of failed batches, and the budget of tries."""

    def __init__(self, *, idempotent: bool = False) -> None:
        self._idempotent = idempotent
        self._tries = MAX_TRIES

    def record_success(self, batch: Batch) -> None:
        """Add tries to the budget for each request of a successful batch."""
        self._tries = min(MAX_TRIES, self._tries + EARNED_TRIES * len(batch.slices))

    def batches_to_retry(self, batch: Batch, error: ProxyError, fitting_rows: int = 0) -> Sequence[Batch]:
        """Return the batches to retry; none if ``error`` must be delivered.

        Args:
            batch: the failed batch.
            error: the error of the batch.
            fitting_rows: row limit that was in force when the batch ran out of memory. The returned batches store the
                limit; it is not replaced when they run out of memory, too.
        """
        batches = self._pieces(batch, error, batch.fitting_rows or fitting_rows)
        # A rejection costs no device time, so it is outside the budget.
        if isinstance(error, InvalidRequest):
            return batches
        if len(batches) > self._tries:
            return ()
        self._tries -= len(batches)
        return batches

    def _pieces(self, batch: Batch, error: ProxyError, fitting_rows: int) -> Sequence[Batch]:
        live = [part for part in batch.slices if not part.pending.resolved]
        tries = batch.attempts + 1
        if isinstance(error, BatchTooLarge):
            return [make_batch(half, tries, fitting_rows) for half in halve_rows(live)]
        if isinstance(error, ModelFailed | InvalidRequest):
            if len(live) < len(batch.slices):
                # Some requests were cancelled: the others may succeed without them.
                return [make_batch(live, tries, fitting_rows)] if live else []
            middle = len(live) // 2
            return [make_batch(half, tries, fitting_rows) for half in (live[:middle], live[middle:])] if middle else []
        if isinstance(error, NotExecuted) and live and batch.attempts < (MAX_UNSENT if batch.suspect else 1):
            return [make_batch(live, tries, fitting_rows, suspect=batch.suspect)]
        if isinstance(error, RuntimeLost) and self._idempotent and (len(live) > 1 or not (tries > 1 or batch.suspect)):
            size = -(-len(live) // MAX_PIECES) or 1
            pieces = [live[start : start + size] for start in range(0, len(live), size)]
            return [make_batch(piece, tries, fitting_rows, suspect=True) for piece in pieces]
        return []


def halve_rows(slices: Sequence[RequestSlice]) -> list[list[RequestSlice]]:
    """Split the rows of ``slices`` into two halves.

    A request may be divided between the halves. The result is empty for a single row.
    """
    rows = sum(part.rows for part in slices)
    if rows < 2:
        return []
    first: list[RequestSlice] = []
    second: list[RequestSlice] = []
    room = (rows + 1) // 2
    for part in slices:
        cut = min(part.stop, part.start + room)
        room -= cut - part.start
        if cut > part.start:
            first.append(RequestSlice(part.pending, part.start, cut - part.start, part.inputs))
        if cut < part.stop:
            second.append(RequestSlice(part.pending, cut, part.stop - cut, part.inputs))
    return [first, second]
