"""Execute one of several identical waiting requests for all. Off by default."""

from collections.abc import Sequence

from shoal_proxy.batching.pending import BatchKey, Delivery, LaneKey, Outcome, PendingRequest
from shoal_proxy.batching.suspects import payload_digest

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
        """Return the request to execute for ``request``; None if one already waits."""
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
        """Remove a cancelled request; return its executed request if now unused."""
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
        """Resolve all requests that share ``shared``, and return their outcomes."""
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
