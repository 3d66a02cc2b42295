"""Decide whether to admit a request, and select the requests of the next batch.

Rules for the next batch, given its start and the batch times:

1. A request that would be late even in its own batch is rejected.
2. The normal case: the first requests, as many as the batch holds, if all of them are in time together.
3. Otherwise some request will be late in any case. Serve as many as possible: take the batch size with the most rows
   per second, counting only requests that are in time in a batch of that size. Of several such sizes take the smallest.
   Requests that would be late even in the batch after it are rejected now.
4. If the runtime pads to certain sizes, a batch just above one size costs as much as the next size. Send the smaller
   full size if it serves more rows per second and the remaining rows are still in time in the batch after it.

Case 3 does not favor the first request. Otherwise every batch would shrink until that request is in time, and the
overload would grow.

Admission predicts the response time of a request that arrives. If the latency objective is at least the time of two
full batches (the running batch and the request's own), full batches in order of arrival are optimal. A request that
would be late in that order is then rejected on arrival instead of after a wait. With a shorter objective, a later
request may be served instead of a waiting one (case 3). A request is then rejected on arrival only if it would be late
even in the next batch. Batches before the request's own are assumed to be full. If those batches have other keys, the
request's own batch may be small, because its key may be rare.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

from shoal_proxy.batching.latency import LatencyTable
from shoal_proxy.batching.pending import NEVER_S

MIN_GUARD, MAX_GUARD = 0.03, 0.05
"""Share of its time that a request behind others must have to spare: the table's margin, within these bounds.

Measured and future times differ. The guard rejects a few more requests at once instead of after a wait; full batches
lose nothing by it.
"""


class WaitingRequest(Protocol):
    """The properties of a request that a selection depends on."""

    @property
    def remaining_rows(self) -> int:
        """Number of rows that still wait."""

    @property
    def soft_deadline_s(self) -> float:
        """Monotonic time (s) by which the response is wanted."""


W = TypeVar("W", bound=WaitingRequest)


class BatchCosts:
    """Times and row limit of batches with one key."""

    __slots__ = ("around_s", "max_rows", "table")

    def __init__(self, table: LatencyTable, around_s: float, max_rows: int) -> None:
        self.table = table
        """The device's time."""
        self.around_s = around_s
        """The host's time before and after a batch."""
        self.max_rows = max_rows
        """Rows of a batch."""

    def finish_s(self, start_s: float, rows: int) -> float:
        """Return when the responses of a batch of ``rows`` are sent."""
        return start_s + self.table.p95_s(rows) + self.around_s

    def rate(self, rows: int) -> float:
        """Return the rows per second of consecutive batches of ``rows``."""
        return rows / max(self.table.p95_s(rows), 1e-9)


class BatchSelection(Generic[W]):
    """The number of rows of the next batch, and the requests to reject first.

    The rows are taken from the head of the queue after the requests in ``rejected`` are removed.
    """

    # No dataclass: mypyc does not compile generic ones.
    def __init__(self, rows: int, rejected: Sequence[W] = ()) -> None:
        self.rows = rows
        self.rejected = rejected


def start_after_s(free_s: Sequence[float], batches: int, batch_s: float) -> float:
    """Return when a batch can start if ``batches`` others, of ``batch_s`` each, run before it.

    Args:
        free_s: time at which each executor of the runtime is free, in order.
        batches: number of batches before it.
        batch_s: duration of each (s).
    """
    rounds, rest = divmod(batches, len(free_s))
    return min(free_s[rest], free_s[0] + rest * batch_s) + rounds * batch_s


def predict_finish_s(  # noqa: PLR0913 (the work before a request has that many parts)
    rows_ahead: int,
    rows: int,
    costs: BatchCosts,
    *,
    free_s: Sequence[float],
    within_s: float,
    queued_behind: bool,
    others_first: bool = False,
) -> float:
    """Return the expected time of the response to a request of ``rows`` rows.

    Args:
        rows_ahead: waiting rows with the same batch key.
        rows: rows of the request.
        costs: times of batches with this key.
        free_s: time at which each executor of the runtime could start a batch of this key, in order.
        within_s: seconds from the request's arrival to its deadline.
        queued_behind: whether a full batch already waits at the runtime.
        others_first: whether batches of other keys run first.
    """
    most = costs.max_rows
    if within_s < 2 * costs.finish_s(0.0, most):
        # No room for two full batches: assume that the request is in the next batch.
        return costs.finish_s(free_s[0], min(rows, most))
    # Full batches that run before the one that completes the request.
    before = (rows_ahead + rows - 1) // most
    # Nothing runs before its batch, so the estimate needs no guard.
    if not (before or queued_behind or others_first):
        return costs.finish_s(free_s[0], rows_ahead + rows)
    guard = min(max(costs.table.margin, MIN_GUARD), MAX_GUARD)
    # At most what two full batches leave: a larger guard would reject every request.
    guard_s = min(guard * within_s, within_s - 2 * costs.finish_s(0.0, most))
    # A request behind full batches expects a full batch itself.
    company = most if before or not others_first else rows_ahead + rows
    return costs.finish_s(start_after_s(free_s, before, costs.table.mean_s(most)), company) + guard_s


def select_batch(waiting: Sequence[W], costs: BatchCosts, start_s: float) -> BatchSelection[W]:
    """Return the batch to form from ``waiting``, which is in serving order."""
    # Case 1.
    alone_s = costs.finish_s(start_s, 1)
    hopeful = [request for request in waiting if request.soft_deadline_s >= alone_s]
    if not hopeful:
        return BatchSelection(0, waiting)
    # Case 2, unless a request of the full batch would be late.
    rows = min(sum([request.remaining_rows for request in hopeful]), costs.max_rows)
    if costs.finish_s(start_s, rows) > _soonest_s(hopeful, rows):  # case 3
        rows = _best_rate(hopeful, costs, start_s)
        finish_s = costs.finish_s(start_s, rows)
        # Requests behind the batch must be in time in the one after it.
        after_s = costs.finish_s(finish_s - costs.around_s, 1)
        candidates, left, hopeful = hopeful, rows, []
        for request in candidates:
            if request.soft_deadline_s >= finish_s and (left > 0 or request.soft_deadline_s >= after_s):
                hopeful.append(request)
                left -= request.remaining_rows
    # Case 4.
    rows = _trim(hopeful, rows, costs, start_s)
    if len(hopeful) == len(waiting):
        return BatchSelection(rows)
    kept = set(map(id, hopeful))
    return BatchSelection(rows, [request for request in waiting if id(request) not in kept])


def _soonest_s(waiting: Sequence[W], rows: int) -> float:
    """Return the earliest soft deadline of the requests with the first ``rows``."""
    soonest_s = NEVER_S
    for request in waiting:
        soonest_s = min(soonest_s, request.soft_deadline_s)
        rows -= request.remaining_rows
        if rows <= 0:
            break
    return soonest_s


def _best_rate(hopeful: Sequence[W], costs: BatchCosts, start_s: float) -> int:
    """Return the size of the batch that serves the most rows per second, all of them in time."""
    order = sorted([(-request.soft_deadline_s, request.remaining_rows) for request in hopeful])
    soft_deadline_s = [due for due, _ in order]
    rows_due_later = [0, *accumulate([left for _, left in order])]
    # Both lists are by falling deadline: the rows in time for a size are those before its finish.

    def in_time(size: int) -> int:
        return min(size, rows_due_later[bisect_right(soft_deadline_s, -costs.finish_s(start_s, size))])

    best = last = 1
    for size in [size for size in costs.table.sizes if size < costs.max_rows] + [costs.max_rows]:
        fills = in_time(size) == size
        # The largest size that is filled lies between the last one that was and this one.
        rows = size if fills else bisect_left(range(size), x=True, lo=last + 1, key=lambda few: in_time(few) < few) - 1
        if costs.rate(rows) > costs.rate(best):
            best = rows
        if not fills:
            break
        last = size
    return best


def _trim(hopeful: Sequence[W], rows: int, costs: BatchCosts, start_s: float) -> int:
    """Return the size of the batch: ``rows``, or the next smaller padded size.

    The smaller size is used if it serves more rows per second and the remaining rows are still in time in the batch
    after it.
    """
    sizes = costs.table.padded_sizes
    index = bisect_left(sizes, rows) - 1
    if index < 0 or sizes[index + 1 : index + 2] == (rows,):
        return rows
    smaller = sizes[index]
    if costs.rate(smaller) <= costs.rate(rows):
        return rows
    # The requests with rows left after the smaller batch.
    rest: Sequence[W] = ()
    first_rows = smaller
    for index, request in enumerate(hopeful):
        first_rows -= request.remaining_rows
        if first_rows < 0:
            rest = hopeful[index:]
            break
    rest_rows = sum([request.remaining_rows for request in hopeful]) - smaller
    next_start_s = start_s + costs.table.p95_s(smaller)
    in_time = costs.finish_s(next_start_s, min(rest_rows, rows)) <= _soonest_s(rest, rest_rows)
    return smaller if in_time else rows
