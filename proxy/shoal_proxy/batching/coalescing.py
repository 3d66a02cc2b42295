"""Identical requests that wait share one row: one is executed, all get its answer. Off unless asked for."""

from collections.abc import Sequence

from shoal_proxy.batching.pending import BatchKey, Delivery, LaneKey, Outcome, Pending
from shoal_proxy.batching.suspects import digest

_Mark = tuple[BatchKey, LaneKey, float, bytes]


class Coalescing:
    """Which requests stand for several callers.

    What runs is a request of its own, which belongs to no caller: a caller that leaves takes nothing from the others.
    Callers of another class, priority or time to live do not share it, since it is served, and refused, by those. Nor
    do callers who come when it has begun: the runtime has been told by when, and that is before their time is up.
    """

    def __init__(self) -> None:
        self._joinable: dict[_Mark, Pending] = {}
        """What stands for others and has not begun, as far as it was looked at."""
        self._callers: dict[Pending, list[Pending]] = {}
        """By what runs for them."""
        self._standing: dict[Pending, Pending] = {}
        """What runs for each caller."""
        self._marks: dict[Pending, _Mark] = {}
        """Of what runs."""

    @property
    def empty(self) -> bool:
        """Return whether nobody shares anything."""
        return not (self._joinable or self._callers or self._standing or self._marks)

    def join(self, caller: Pending) -> Pending | None:
        """Return the request to run for ``caller``; None when one that stands for it waits already."""
        time_to_live_s = round(caller.due_s - caller.arrived_s, 3)
        mark = (caller.key, caller.lane, time_to_live_s, digest(caller))
        shared = self._joinable.get(mark)
        if shared is not None and not shared.taken:
            shared.deadline_s = max(shared.deadline_s, caller.deadline_s)
            self._callers[shared].append(caller)
            self._standing[caller] = shared
            caller.inputs = {}  # nobody reads them again, and no bound counts them
            return None
        shared = self._joinable[mark] = caller.stand_in()
        self._callers[shared] = [caller]
        self._standing[caller] = shared
        self._marks[shared] = mark
        return shared

    def leave(self, caller: Pending) -> Pending | None:
        """Forget a caller who has gone; return the request that ran for nobody else."""
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
        """Return the request that runs for ``caller``: itself, where it shares none."""
        return self._standing.get(caller, caller)

    def callers_of(self, shared: Pending) -> Sequence[Pending]:
        """Return those for whom ``shared`` runs."""
        return self._callers.get(shared, ())

    def deliveries(self, shared: Pending, outcome: Outcome) -> list[Delivery]:
        """Return what is to be handed over, now that ``shared`` has its outcome: to all who share it."""
        deliveries: list[Delivery] = []
        for caller in self._forget(shared):
            del self._standing[caller]
            caller.timing = shared.timing
            caller.may_have_run = shared.may_have_run
            caller.queued_s = max(0.0, shared.arrived_s + shared.queued_s - caller.arrived_s)
            deliveries.append(caller.resolve(outcome))
        return deliveries

    def _forget(self, shared: Pending) -> list[Pending]:
        mark = self._marks.pop(shared, None)
        if mark is not None and self._joinable.get(mark) is shared:
            del self._joinable[mark]
        return self._callers.pop(shared, [])
