"""Whether a request that arrives now can still be answered in time, if those before it are.

Where the objective leaves room for two of the largest batches, one running and one's own, serving first come first
served in full batches is as good as anything, so a request is refused at once when its place in that order is too late,
rather than after having waited in vain. Where it does not, whoever comes later may be worth more than whoever waits
(`selection`, case 3); then only the hopeless are refused at once: those that would be late even if they were next.

A request whose batch starts after others that have not begun yet must expect company: batches are full by then. But
where those are of other keys, its own key may be a rare one, and then they are not.
"""

from shoal_proxy.batching.selection import Costs

MIN_GUARD, MAX_GUARD = 0.03, 0.05
"""Share of its time that a request must have to spare if it comes behind others: the table's own margin, within these.
What is measured and what will be differ; refusing a few more at once spares many a wait in vain, and full batches lose
nothing by it."""


def predict_finish_s(  # noqa: PLR0913 (what comes before a request has that many parts)
    rows_ahead: int,
    rows: int,
    costs: Costs,
    *,
    free_s: float,
    within_s: float,
    queued_behind: bool,
    others_first: bool = False,
) -> float:
    """Return when a request of ``rows`` would be answered, at the earliest.

    Args:
        rows_ahead: that wait already for batches of the same key.
        rows: of the request.
        costs: of its batches.
        free_s: when the runtime could start the next batch of this key.
        within_s: how long a request may take in all.
        queued_behind: a full batch waits at the runtime already.
        others_first: batches of other keys do before that.
    """
    most = costs.max_rows
    if within_s < 2 * costs.finish_s(0.0, most):
        return costs.finish_s(free_s, min(rows, most))
    before = (rows_ahead + rows - 1) // most
    if not (before or queued_behind or others_first):
        return costs.finish_s(free_s, rows_ahead + rows)
    guard = min(max(costs.table.margin, MIN_GUARD), MAX_GUARD)
    guard_s = min(guard * within_s, within_s - 2 * costs.finish_s(0.0, most))
    company = most if before or not others_first else rows_ahead + rows
    return costs.finish_s(free_s + before * costs.table.expected_s(most), company) + guard_s
