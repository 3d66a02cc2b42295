"""Decide when a batch closes, and select its requests.

`Adaptive` is work-conserving. While the runtime can accept another batch, waiting rows are sent at once. They are held
only if many more requests are expected within moments (`returns`, `early_batches`). One more batch may be sent ahead to
a busy runtime, so that the device never waits for the host. A full batch is sent ahead at once, since waiting could not
improve it. A partial batch is sent just in time (`early_batches`), since it may still grow while the runtime is busy. A
full batch of a lower priority is also sent just in time: until then, a request of a higher priority may still join it,
and then waits only for the running batch. `selection` decides which requests the batch contains, and which are
rejected.

A group holds the waiting requests of one batch key. Groups are served in order (`order`). A full batch of one key is
not sent ahead of an older partial batch of another key, or a key that is always full would starve all others.

`Fixed` closes a batch when it is full or ``max_delay_s`` old, as other servers do.

`None` runs each request alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal_proxy.batching.order import Group
from shoal_proxy.batching.pending import NEVER_S, PendingRequest
from shoal_proxy.batching.queue import Queue
from shoal_proxy.batching.selection import BatchCosts, BatchSelection, select_batch
from shoal_schema.resource.traffic import BatchingPolicy


@dataclass(frozen=True)
class BatchLimits:
    """The configured limits of batches."""

    max_rows: int
    """Rows of a batch."""
    max_delay_s: float = 0.0
    """Maximum time that a batch waits for more rows (`Fixed`)."""
    in_flight: int = 1
    """Batches that run at a time."""
    policy: BatchingPolicy = BatchingPolicy.ADAPTIVE
    alone: bool = False
    """Whether a batch holds rows of only one request, under every policy."""


class DeviceState:
    """The state of the runtime at ``now_s``."""

    __slots__ = ("ahead_s", "free_s", "in_flight", "now_s")

    def __init__(self, in_flight: int, now_s: float, free_s: float, ahead_s: float = NEVER_S) -> None:
        self.in_flight = in_flight
        """Batches that the runtime holds."""
        self.now_s = now_s
        self.free_s = free_s
        """Earliest time at which the runtime could start the next batch; at least now."""
        self.ahead_s = ahead_s
        """When a partial batch may be sent to it although it is busy; `NEVER_S` for not before it is free."""


class CloseBatch:
    """The decision to send a batch of ``rows`` rows from ``group``.

    The requests in ``rejected`` are rejected first.
    """

    __slots__ = ("group", "rejected", "rows")

    def __init__(self, group: Group, rows: int, rejected: Sequence[PendingRequest] = ()) -> None:
        self.group = group
        self.rows = rows
        self.rejected = rejected


class WaitUntil:
    """The decision to form no batch before ``until_s`` or the next event."""

    __slots__ = ("until_s",)

    def __init__(self, until_s: float = NEVER_S) -> None:
        self.until_s = until_s


@dataclass(frozen=True)
class Estimates:
    """Functions that estimate batch times and hold times for `decide_batch`."""

    costs_of: Callable[[Group], BatchCosts]
    """Costs of a group's batches."""
    hold_s: Callable[[Group, BatchCosts, DeviceState], float]
    """Seconds to hold a batch for clients about to return, after the device is free."""


def decide_batch(queue: Queue, limits: BatchLimits, device: DeviceState, outlook: Estimates) -> CloseBatch | WaitUntil:
    """Decide whether to send a batch now, and from which group of requests.

    A group holds the waiting requests of one batch key. Groups are served in order, even if a later group is full. Only
    with `Fixed`, a full group overtakes earlier groups whose delay has not elapsed.
    """
    # At most one batch is sent ahead to a busy runtime.
    if not queue.groups or device.in_flight > limits.in_flight:
        return WaitUntil()
    group = queue.first()
    # A request that must run alone has nothing to wait for, so the adaptive policy forms its batch by itself.
    forms_alone = group.key.solo > 0 and limits.policy is BatchingPolicy.ADAPTIVE
    if limits.policy is BatchingPolicy.NONE or (limits.alone and not forms_alone):
        return CloseBatch(group, min(group.head.remaining_rows, outlook.costs_of(group).max_rows))
    if limits.policy is BatchingPolicy.ADAPTIVE:
        return _close_adaptive(queue, group, limits, device, outlook)
    busy = device.in_flight == limits.in_flight
    close_at_s = group.oldest_s + limits.max_delay_s
    # Before its time only a full batch closes, of any key.
    if device.now_s < close_at_s or (busy and not queue.full):
        if not queue.full:
            return WaitUntil() if busy else WaitUntil(close_at_s)
        group = next(iter(queue.full.values()))
    return CloseBatch(group, min(group.rows, outlook.costs_of(group).max_rows))


def select_from(group: Group, costs: BatchCosts, start_s: float) -> BatchSelection[PendingRequest]:
    """Select the requests of the next batch from one batch key's ``group``."""
    rows = min(group.rows, costs.max_rows)
    # The usual case costs nothing: the head has the earliest deadline, and meets it.
    if (
        group.in_deadline_order
        and not costs.table.padded_sizes
        and costs.finish_s(start_s, rows) <= group.head.soft_deadline_s
    ):
        return BatchSelection(rows)
    return select_batch(list(group.requests()), costs, start_s)


def _close_adaptive(
    queue: Queue, group: Group, limits: BatchLimits, device: DeviceState, outlook: Estimates
) -> CloseBatch | WaitUntil:
    costs = outlook.costs_of(group)
    if device.in_flight == limits.in_flight:
        full = group.key.solo > 0 or group.rows >= costs.max_rows
        if full and not group.key.solo and any(lane.level for lane in group.lanes):
            # A later request of level 0, which is served first, may still take the place of rows of lower levels.
            urgent = [pending.remaining_rows for key, lane in group.lanes.items() if not key.level for pending in lane]
            full = sum(urgent) >= costs.max_rows
        # A partial batch might still grow, but not while a full batch of other keys waits behind it.
        if full or (device.ahead_s == NEVER_S and queue.rows - group.rows >= costs.max_rows):
            # Send ahead of a busy runtime only what no later event could change.
            rows = min(group.rows, costs.max_rows)
            selection = select_from(group, costs, device.free_s)
            if not selection.rejected and selection.rows >= rows:
                return CloseBatch(group, rows)
        if device.now_s < device.ahead_s:
            return WaitUntil(device.ahead_s)
    # The runtime is free, or about to be: send what is there, unless clients are about to return.
    selection = select_from(group, costs, device.free_s)
    if not selection.rejected and (hold_s := outlook.hold_s(group, costs, device)) > 0:
        return WaitUntil(device.free_s + hold_s)
    return CloseBatch(group, selection.rows, selection.rejected)
