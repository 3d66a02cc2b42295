"""Coalesce identical waiting requests: one is executed, and all get its result. Off by default."""

from collections.abc import Sequence

from shoal_proxy.batching.pending import BatchKey, Delivery, LaneKey, Outcome, Pending
from shoal_proxy.batching.suspects import digest

_Mark = tuple[BatchKey, LaneKey, float, bytes]
"""Requests with equal marks are identical: key, lane, time to live (s), digest of the inputs."""


class Coalescing:
    """The executed request of each set of identical requests.

    The executed request is separate and belongs to no client, so a cancelled request takes nothing from the others.
    Requests of another class, priority or time to live are not coalesced, since those decide order and rejection. A
    request that arrives after execution began is not coalesced either: the deadline sent to the runtime is earlier than
    its own.
    """

    def __init__(self) -> None:
        self._joinable: dict[_Mark, Pending] = {}
        """Executed requests that have not begun, as of the last look-up."""
        self._callers: dict[Pending, list[Pending]] = {}
        """Clients' requests by executed request."""
        self._standing: dict[Pending, Pending] = {}
        """Executed request by client's request."""
        self._marks: dict[Pending, _Mark] = {}
        """Mark by executed request."""

    @property
    def empty(self) -> bool:
        """Return whether no request is tracked."""
        return not (self._joinable or self._callers or self._standing or self._marks)

    def join(self, caller: Pending) -> Pending | None:
        """Return the request to execute for ``caller``; None when an identical one already waits."""
        time_to_live_s = round(caller.due_s - caller.arrived_s, 3)
        mark = (caller.key, caller.lane, time_to_live_s, digest(caller))
        shared = self._joinable.get(mark)
        if shared is not None and not shared.taken:
            # The executed request lives as long as any of its clients waits.
            shared.deadline_s = max(shared.deadline_s, caller.deadline_s)
            self._callers[shared].append(caller)
            self._standing[caller] = shared
            caller.inputs = {}  # never read again, and outside the queue's bound of bytes
            return None
        # The first of its kind, or the earlier one has begun.
        shared = self._joinable[mark] = caller.stand_in()
        self._callers[shared] = [caller]
        self._standing[caller] = shared
        self._marks[shared] = mark
        return shared

    def leave(self, caller: Pending) -> Pending | None:
        """Forget a cancelled request; return the executed request if it served no other."""
        shared = self._standing.pop(caller, None)
        if shared is None:
            return None
        callers = self._callers[shared]
        callers.remove(caller)
        if callers:
            return None
        self._forget(shared)
        return shared

    def standing_for(self, caller: Pending) -> Pending:
        """Return the request executed for ``caller``: itself, where it is not coalesced."""
        return self._standing.get(caller, caller)

    def callers_of(self, shared: Pending) -> Sequence[Pending]:
        """Return the requests for which ``shared`` is executed."""
        return self._callers.get(shared, ())

    def deliveries(self, shared: Pending, outcome: Outcome) -> list[Delivery]:
        """Apply the outcome of ``shared`` to all requests that share it; return the deliveries."""
        deliveries: list[Delivery] = []
        for caller in self._forget(shared):
            del self._standing[caller]
            caller.timing = shared.timing
            caller.may_have_run = shared.may_have_run
            # It waited from its own arrival until the executed request was sent.
            caller.queued_s = max(0.0, shared.arrived_s + shared.queued_s - caller.arrived_s)
            deliveries.append(caller.resolve(outcome))
        return deliveries

    def _forget(self, shared: Pending) -> list[Pending]:
        mark = self._marks.pop(shared, None)
        if mark is not None and self._joinable.get(mark) is shared:
            del self._joinable[mark]
        return self._callers.pop(shared, [])
