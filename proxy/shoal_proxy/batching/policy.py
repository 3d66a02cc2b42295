"""When a batch closes.

Work-conserving: while the runtime has a free slot, whatever waits goes at once, unless the user asked for a delay. One
more batch may be sent ahead of a busy runtime, so that it never waits for the host: a full one at once, since waiting
longer could not improve it, a partial one just in time (`pace`), since it may still grow while the runtime is busy.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal_proxy.batching.queue import Group, Queue


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``max_rows`` per batch; ``max_delay_s`` that one may wait for more; ``in_flight`` batches that run at a time."""

    max_rows: int
    max_delay_s: float = 0.0
    in_flight: int = 1


@dataclass(frozen=True, slots=True)
class Close:
    """Form a batch from this group now."""

    group: Group


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing closes now; look again at ``until_s``, or only when something changes."""

    until_s: float | None = None


def decide(
    queue: Queue, limits: BatchLimits, *, in_flight: int, now_s: float, ahead_s: float | None = None
) -> Close | Wait:
    """Return the group whose batch closes now, oldest head first, or how long to wait.

    ``ahead_s``: when a partial batch may leave for a runtime that is still busy; None for not at all.
    """
    if not queue.groups or in_flight > limits.in_flight:
        return Wait()
    if in_flight == limits.in_flight or limits.max_delay_s > 0:
        full = [group for group in queue.groups.values() if group.rows >= limits.max_rows or group.key.solo]
        if full:
            return Close(_oldest(full))
        if in_flight == limits.in_flight and ahead_s is None:
            return Wait()
    oldest = _oldest(list(queue.groups.values()))
    due_s = oldest.oldest_s + limits.max_delay_s
    if in_flight == limits.in_flight and ahead_s is not None:
        due_s = max(due_s, ahead_s)
    return Close(oldest) if now_s >= due_s else Wait(due_s)


def _oldest(groups: list[Group]) -> Group:
    return groups[0] if len(groups) == 1 else min(groups, key=lambda group: group.oldest_s)
