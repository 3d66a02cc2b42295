"""When a batch closes, and what is in it.

`Adaptive`: work-conserving. While the runtime has a free slot, whatever waits goes at once; the one exception is a
burst of requests about to come (`returns`, `clumps`). One more batch may be sent ahead of a busy runtime, so that it
never waits for the host: a full one at once, since waiting longer could not improve it, a partial one just in time
(`pace`), since it may still grow while the runtime is busy. So does a full one of a lower priority, in which somebody
who is served first may still find a place: a backfill costs them one batch at the most, the one that runs. What is in
it, and who is refused: `selection`.

Which group's turn it is (`line`) comes first: a full batch of one key is not sent ahead of an older partial one of
another, or a key that is always full would starve all others.

`Fixed`: full, or ``max_delay_s`` old, as users of other servers know it. `None`: each request alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal_proxy.batching.group import Group
from shoal_proxy.batching.pending import NEVER_S, Pending
from shoal_proxy.batching.queue import Queue
from shoal_proxy.batching.selection import Costs, Selection, select_batch
from shoal_schema.resource.traffic import BatchingPolicy


@dataclass(frozen=True)
class BatchLimits:
    """``max_rows`` per batch; ``max_delay_s`` that one may wait for more; ``in_flight`` batches that run at a time.

    ``alone``: a batch holds rows of one request, whatever the policy.
    """

    max_rows: int
    max_delay_s: float = 0.0
    in_flight: int = 1
    policy: BatchingPolicy = BatchingPolicy.ADAPTIVE
    alone: bool = False


class Device:
    """What is known of the runtime at the moment.

    ``in_flight``: batches it holds. ``free_s``: when the next one could start, not before now. ``ahead_s``: when a
    partial batch may leave for it although it is busy; `NEVER_S` for not before it is free.
    """

    __slots__ = ("ahead_s", "free_s", "in_flight", "now_s")

    def __init__(self, in_flight: int, now_s: float, free_s: float, ahead_s: float = NEVER_S) -> None:
        self.in_flight = in_flight
        self.now_s = now_s
        self.free_s = free_s
        self.ahead_s = ahead_s


class Close:
    """Refuse ``refused``, then form a batch of ``rows`` from the head of this group; of nothing when that is 0."""

    __slots__ = ("group", "refused", "rows")

    def __init__(self, group: Group, rows: int, refused: Sequence[Pending] = ()) -> None:
        self.group = group
        self.rows = rows
        self.refused = refused


class Wait:
    """Nothing closes now; ask again at ``until_s``, or when something has happened."""

    __slots__ = ("until_s",)

    def __init__(self, until_s: float = NEVER_S) -> None:
        self.until_s = until_s


@dataclass(frozen=True)
class Outlook:
    """``costs_of`` a group's batches; ``hold_s`` after the device is free for callers about to return to it."""

    costs_of: Callable[[Group], Costs]
    hold_s: Callable[[Group, Costs, Device], float]


def decide(queue: Queue, limits: BatchLimits, device: Device, outlook: Outlook) -> Close | Wait:
    """Return the group whose batch closes now, or how long to wait. Whose turn it is decides, not whose batch is full.

    Only for `Fixed` batches a full group overtakes others, as long as those are not due.
    """
    if not queue.groups or device.in_flight > limits.in_flight:
        return Wait()
    group = queue.first()
    if limits.policy is BatchingPolicy.NONE or (limits.alone and not _is_alone(group, limits)):
        return Close(group, min(group.head.left, outlook.costs_of(group).max_rows))
    if limits.policy is BatchingPolicy.FIXED:
        return _close_fixed(queue, group, limits, device, outlook)
    return _close_adaptive(queue, group, limits, device, outlook)


def _is_alone(group: Group, limits: BatchLimits) -> bool:
    """Return whether the policy forms batches of one request by itself, and there is nothing to wait for."""
    return group.key.solo > 0 and limits.policy is BatchingPolicy.ADAPTIVE


def select_from(group: Group, costs: Costs, start_s: float) -> Selection[Pending]:
    """Return the selection from ``group``, at no cost in the normal case: the head is due first, and in time."""
    rows = min(group.rows, costs.max_rows)
    if group.in_due_order and not costs.table.padded_sizes and costs.finish_s(start_s, rows) <= group.head.due_s:
        return Selection(rows)
    return select_batch(list(group.requests()), costs, start_s)


def _close_adaptive(queue: Queue, group: Group, limits: BatchLimits, device: Device, outlook: Outlook) -> Close | Wait:
    """Close the batch whose turn it is, now or just in time."""
    costs = outlook.costs_of(group)
    if device.in_flight == limits.in_flight:
        full = group.key.solo > 0 or (group.rows >= costs.max_rows and not _gives_way(group, costs.max_rows))
        # A partial one might still grow; but if a batch of others waits behind it, the runtime had better not wait too.
        if full or (device.ahead_s == NEVER_S and queue.rows - group.rows >= costs.max_rows):
            close = _close_ahead(group, costs, device)
            if close is not None:
                return close
        if device.now_s < device.ahead_s:
            return Wait(device.ahead_s)
    return _close_partial(group, costs, device, outlook)


def _gives_way(group: Group, rows: int) -> bool:
    """Return whether somebody who is served first, and has not come yet, could take the place of rows that wait."""
    if not any(lane.level for lane in group.lanes):
        return False
    urgent = [pending.left for key, lane in group.lanes.items() if not key.level for pending in lane]
    return sum(urgent) < rows


def _close_ahead(group: Group, costs: Costs, device: Device) -> Close | None:
    """Close a batch ahead of a busy runtime, but only if nothing that may still happen could change it."""
    rows = min(group.rows, costs.max_rows)
    selection = select_from(group, costs, device.free_s)
    return None if selection.refused or selection.rows < rows else Close(group, rows)


def _close_fixed(queue: Queue, group: Group, limits: BatchLimits, device: Device, outlook: Outlook) -> Close | Wait:
    """Close the oldest batch if it is due, else one that is full."""
    busy = device.in_flight == limits.in_flight
    due_s = group.oldest_s + limits.max_delay_s
    if device.now_s < due_s or (busy and not queue.full):
        if not queue.full:
            return Wait() if busy else Wait(due_s)
        group = next(iter(queue.full.values()))
    return Close(group, min(group.rows, outlook.costs_of(group).max_rows))


def _close_partial(group: Group, costs: Costs, device: Device, outlook: Outlook) -> Close | Wait:
    """Close a batch for a runtime that is free, or as good as free, unless callers are about to return."""
    selection = select_from(group, costs, device.free_s)
    if not selection.refused and (hold_s := outlook.hold_s(group, costs, device)) > 0:
        return Wait(device.free_s + hold_s)
    return Close(group, selection.rows, selection.refused)
