"""When a batch closes, and what is in it.

`Adaptive`: work-conserving. While the runtime has a free slot, whatever waits goes at once; the one exception is a
burst of requests about to come (`returns`, `clumps`). One more batch may be sent ahead of a busy runtime, so that it
never waits for the host: a full one at once, since waiting longer could not improve it, a partial one just in time
(`pace`), since it may still grow while the runtime is busy. What is in it, and who is refused: `plan`.

`Fixed`: full, or ``max_delay_s`` old, as users of other servers know it. `None`: each request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shoal_proxy.batching.pending import Pending
from shoal_proxy.batching.plan import Costs, Plan, plan_batch
from shoal_proxy.batching.queue import Group, Queue


class Policy(StrEnum):
    """How batches are formed."""

    ADAPTIVE = "Adaptive"
    FIXED = "Fixed"
    NONE = "None"


@dataclass(frozen=True)
class BatchLimits:
    """``max_rows`` per batch; ``max_delay_s`` that one may wait for more; ``in_flight`` batches that run at a time."""

    max_rows: int
    max_delay_s: float = 0.0
    in_flight: int = 1
    policy: Policy = Policy.ADAPTIVE


@dataclass(frozen=True)
class Device:
    """What is known of the runtime at the moment.

    ``in_flight``: batches it holds. ``free_s``: when the next one could start, not before now. ``ahead_s``: when a
    partial batch may leave for it although it is busy; None for not before it is free.
    """

    in_flight: int
    now_s: float
    free_s: float
    ahead_s: float | None = None


@dataclass(frozen=True)
class Close:
    """Refuse ``refused``, then form a batch of ``rows`` from the head of this group; of nothing when that is 0."""

    group: Group
    rows: int
    refused: Sequence[Pending] = ()


@dataclass(frozen=True)
class Wait:
    """Nothing closes now; look again at ``until_s``, or only when something changes."""

    until_s: float | None = None


@dataclass(frozen=True)
class Outlook:
    """``costs_of`` a group's batches; ``hold_s`` after the device is free for callers about to return to it."""

    costs_of: Callable[[Group], Costs]
    hold_s: Callable[[Group, Costs, Device], float]


def decide(queue: Queue, limits: BatchLimits, device: Device, outlook: Outlook) -> Close | Wait:
    """Return the group whose batch closes now, oldest head first, or how long to wait."""
    if not queue.groups or device.in_flight > limits.in_flight:
        return Wait()
    groups = list(queue.groups.values())
    if limits.policy is Policy.NONE:
        return _one_request(_oldest(groups), outlook)
    if device.in_flight == limits.in_flight or limits.max_delay_s > 0:
        full = [group for group in groups if group.key.solo or group.rows >= outlook.costs_of(group).max_rows]
        if full and (close := _close_full(_oldest(full), limits, device, outlook)):
            return close
    if limits.policy is Policy.FIXED:
        return _close_old(_oldest(groups), limits, device, outlook)
    return _close_partial(_oldest(groups), limits, device, outlook)


def plan_group(group: Group, costs: Costs, start_s: float) -> Plan[Pending]:
    """Return the plan for ``group``, at no cost in the normal case: the head is due first, and in time."""
    rows = min(group.rows, costs.max_rows)
    if group.in_due_order and not costs.table.padded_sizes and costs.finish_s(start_s, rows) <= group.head.due_s:
        return Plan(rows)
    return plan_batch(list(group.requests()), costs, start_s)


def _close_full(group: Group, limits: BatchLimits, device: Device, outlook: Outlook) -> Close | None:
    """Close a full batch, ahead of a busy runtime only if nothing that may still happen could change it."""
    costs = outlook.costs_of(group)
    rows = min(group.rows, costs.max_rows)
    if limits.policy is Policy.FIXED:
        return Close(group, rows)
    plan = plan_group(group, costs, device.free_s)
    if device.in_flight == limits.in_flight and (plan.refused or plan.rows < rows):
        return None
    return Close(group, plan.rows, plan.refused)


def _close_old(group: Group, limits: BatchLimits, device: Device, outlook: Outlook) -> Close | Wait:
    if device.in_flight == limits.in_flight:
        return Wait()
    due_s = group.oldest_s + limits.max_delay_s
    return Close(group, min(group.rows, outlook.costs_of(group).max_rows)) if device.now_s >= due_s else Wait(due_s)


def _close_partial(group: Group, limits: BatchLimits, device: Device, outlook: Outlook) -> Close | Wait:
    if device.in_flight == limits.in_flight:
        if device.ahead_s is None:
            return Wait()
        if device.now_s < device.ahead_s:
            return Wait(device.ahead_s)
    costs = outlook.costs_of(group)
    plan = plan_group(group, costs, device.free_s)
    if not plan.refused and (hold_s := outlook.hold_s(group, costs, device)) > 0:
        return Wait(device.free_s + hold_s)
    return Close(group, plan.rows, plan.refused)


def _one_request(group: Group, outlook: Outlook) -> Close:
    return Close(group, min(group.head.left, outlook.costs_of(group).max_rows))


def _oldest(groups: list[Group]) -> Group:
    return groups[0] if len(groups) == 1 else min(groups, key=lambda group: group.oldest_s)
