"""Identical requests in flight share one row: the first is executed, all get its answer. Off unless asked for."""

from __future__ import annotations

from dataclasses import replace

from shoal_proxy.batching.pending import BatchKey, Outcome, Pending
from shoal_proxy.batching.suspects import digest

_Mark = tuple[BatchKey, bytes]


class Coalescing:
    """Which requests stand for several callers.

    What runs is a request of its own, which belongs to no caller: a caller that leaves takes nothing from the others.
    """

    def __init__(self) -> None:
        self._shared: dict[_Mark, tuple[Pending, list[Pending]]] = {}
        self._marks: dict[Pending, _Mark] = {}

    def join(self, caller: Pending) -> Pending | None:
        """Return the request to run for ``caller``; None when one that stands for it runs already."""
        mark = (caller.key, digest(caller.inputs))
        if mark in self._shared:
            self._shared[mark][1].append(caller)
            shared = None
        else:
            shared = replace(caller, deliver=lambda outcome: self._deliver(mark, outcome))
            self._shared[mark] = (shared, [caller])
        self._marks[caller] = mark
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
        del self._shared[mark]
        return shared

    def _deliver(self, mark: _Mark, outcome: Outcome) -> None:
        shared, callers = self._shared.pop(mark)
        for caller in callers:
            self._marks.pop(caller, None)
            caller.timing = shared.timing
            caller.resolve(outcome)
