"""Predict the response time of a request that arrives now.

If the latency objective is at least the time of two full batches (the running batch and the request's own), full
batches in order of arrival are optimal. A request that would be late in that order is then rejected on arrival instead
of after a wait. With a shorter objective, a later request may be served instead of a waiting one (`selection`, case 3).
A request is then rejected on arrival only if it would be late even in the next batch.

Batches before the request's own are assumed to be full. If those batches have other keys, the request's own batch may
be small, because its key may be rare.
"""

from shoal_proxy.batching.selection import BatchCosts

MIN_GUARD, MAX_GUARD = 0.03, 0.05
"""Share of its time that a request behind others must have to spare: the table's margin, within these bounds.

Measured and future times differ. The guard rejects a few more requests at once instead of after a wait; full batches
lose nothing by it.
"""


def predict_finish_s(  # noqa: PLR0913 (the work before a request has that many parts)
    rows_ahead: int,
    rows: int,
    costs: BatchCosts,
    *,
    free_s: float,
    within_s: float,
    queued_behind: bool,
    others_first: bool = False,
) -> float:
    """Return the expected time of the response to a request of ``rows`` rows.

    Args:
        rows_ahead: waiting rows with the same batch key.
        rows: rows of the request.
        costs: times of batches with this key.
        free_s: time at which the runtime could start the next batch of this key.
        within_s: seconds from the request's arrival to its deadline.
        queued_behind: whether a full batch already waits at the runtime.
        others_first: whether batches of other keys run first.
    """
    most = costs.max_rows
    if within_s < 2 * costs.finish_s(0.0, most):
        # No room for two full batches: assume that the request is in the next batch.
        return costs.finish_s(free_s, min(rows, most))
    # Full batches that run before the one that completes the request.
    before = (rows_ahead + rows - 1) // most
    # Nothing runs before its batch, so the estimate needs no guard.
    if not (before or queued_behind or others_first):
        return costs.finish_s(free_s, rows_ahead + rows)
    guard = min(max(costs.table.margin, MIN_GUARD), MAX_GUARD)
    # At most what two full batches leave: a larger guard would reject every request.
    guard_s = min(guard * within_s, within_s - 2 * costs.finish_s(0.0, most))
    # A request behind full batches expects a full batch itself.
    company = most if before or not others_first else rows_ahead + rows
    return costs.finish_s(free_s + before * costs.table.mean_s(most), company) + guard_s
