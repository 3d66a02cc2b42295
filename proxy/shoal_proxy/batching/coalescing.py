"""Identical requests in flight share one row: the first is executed, all get its answer. Off unless asked for."""

from shoal_proxy.batching.pending import BatchKey, Delivery, LaneKey, Outcome, Pending
from shoal_proxy.batching.suspects import digest

_Mark = tuple[BatchKey, LaneKey, float, bytes]


class Coalescing:
    """Which requests stand for several callers.

    What runs is a request of its own, which belongs to no caller: a caller that leaves takes nothing from the others.
    Callers of another class, priority or time to live do not share it, since it is served, and refused, by those.
    """

    def __init__(self) -> None:
        self._shared: dict[_Mark, tuple[Pending, list[Pending]]] = {}
        self._marks: dict[Pending, _Mark] = {}
        """Of callers, and of what runs for them."""

    def join(self, caller: Pending) -> Pending | None:
        """Return the request to run for ``caller``; None when one that stands for it runs already."""
        time_to_live_s = round(caller.due_s - caller.arrived_s, 3)
        mark = (caller.key, caller.lane, time_to_live_s, digest(caller))
        self._marks[caller] = mark
        if mark in self._shared:
            running, callers = self._shared[mark]
            running.deadline_s = max(running.deadline_s, caller.deadline_s)
            callers.append(caller)
            caller.inputs = {}  # nobody reads them again, and no bound counts them
            return None
        shared = caller.stand_in()
        self._shared[mark] = (shared, [caller])
        self._marks[shared] = mark
        return shared

    def leave(self, caller: Pending) -> Pending | None:
        """Forget a caller who has gone; return the request that ran for nobody else."""
        mark = self._marks.pop(caller, None)
        if mark is None:
            return None
        shared, callers = self._shared[mark]
        callers.remove(caller)
        if callers:
            return None
        del self._shared[mark], self._marks[shared]
        return shared

    def standing_for(self, caller: Pending) -> Pending:
        """Return the request that runs for ``caller``: itself, where it shares none."""
        mark = self._marks.get(caller)
        return caller if mark is None else self._shared[mark][0]

    def deliveries(self, shared: Pending, outcome: Outcome) -> list[Delivery]:
        """Return what is to be handed over, now that ``shared`` has its outcome: to all who share it."""
        mark = self._marks.pop(shared, None)
        if mark is None:
            return []
        _, callers = self._shared.pop(mark)
        deliveries: list[Delivery] = []
        for caller in callers:
            del self._marks[caller]
            caller.timing = shared.timing
            caller.may_have_run = shared.may_have_run
            caller.queued_s = max(0.0, shared.arrived_s + shared.queued_s - caller.arrived_s)
            deliveries.append(caller.resolve(outcome))
        return deliveries
