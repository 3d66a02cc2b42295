"""The document of ``GET /v1/load``: queued and running rows, throughput and capacity."""

from shoal_proxy.batching.scheduler import Scheduler
from shoal_proxy.explaining.capacity import capacity
from shoal_proxy.explaining.report import last_key, limiting
from shoal_schema.interfaces.load import Capacity, GraphState, Load, RejectedRows, RowsChecked
from shoal_schema.interfaces.metrics import RejectionReason


def read_load(
    scheduler: Scheduler,
    now_s: float,
    *,
    draining: bool = False,
    taking: bool = True,
    graph: GraphState | None = None,
    precision: str = "",
) -> Load:
    """Return the load report of a replica.

    Args:
        scheduler: the scheduler to report on.
        now_s: monotonic time (s).
        draining: whether this replica is about to stop.
        taking: whether the replica accepts requests; False without a runtime and during a drain.
        graph: the state of a graph's proxy; None for a model's proxy.
        precision: the precision that the runtime chose by measurement; empty if it chose none.
    """
    batcher, traffic = scheduler.batcher, scheduler.traffic
    key = last_key(batcher)
    traffic.advance(now_s)
    # Integrals up to now, without waiting for the next pass over the queue.
    queued_rows = batcher.queue.rows + scheduler.waiting_job_rows
    traffic.set_held_rows(queued_rows, scheduler.in_flight_rows)
    checks = scheduler.checks
    serves = _capacity(scheduler)
    return Load(
        time_s=now_s,
        queued_rows=queued_rows,
        running_rows=scheduler.in_flight_rows,
        arrived_rows=traffic.arrived_rows,
        answered_rows=traffic.answered_rows,
        refused_rows=RejectedRows(*(traffic.refused_rows.get(reason, 0) for reason in _REASONS)),
        forwarded_rows=traffic.forwarded_rows,
        row_seconds=traffic.row_s,
        queued_row_seconds=traffic.queued_row_s,
        busy_s=traffic.busy_s,
        utilization=_utilization(scheduler, serves),
        objective_attainable=batcher.can_meet_objective(key),
        draining=draining,
        capacity=serves,
        expected_wait_s=expected_wait_s(scheduler, now_s) if taking else None,
        batches=traffic.batches,
        graph=graph,
        rows=None
        if checks is None
        else RowsChecked(not checks.violated, checks.checked_rows, checks.violations, checks.unchecked),
        precision=precision,
    )


# In the order of the fields of `RejectedRows`.
_REASONS = (RejectionReason.QUEUE_ROWS, RejectionReason.QUEUE_BYTES, RejectionReason.LATE, RejectionReason.RUNTIME_AWAY)


def utilization(scheduler: Scheduler, now_s: float) -> float:
    """Return the recent load as a share of the capacity, 0 to 1."""
    scheduler.traffic.advance(now_s)
    return _utilization(scheduler, _capacity(scheduler))


def demand(scheduler: Scheduler, now_s: float) -> float:
    """Return the number of replicas that the recent requests need.

    Requests forwarded to a peer do not count. While the capacity is unknown, return the busy share of the last second.
    """
    traffic, serves = scheduler.traffic, _capacity(scheduler)
    traffic.advance(now_s)
    return traffic.busy if serves is None else traffic.kept_rows_per_s / serves.rows_per_s


def expected_wait_s(scheduler: Scheduler, now_s: float) -> float:
    """Return the time (s) that a request of one row would take if it arrived now."""
    return scheduler.batcher.expected_wait_s(last_key(scheduler.batcher), now_s)


def _capacity(scheduler: Scheduler) -> Capacity | None:
    batcher, busiest = scheduler.batcher, scheduler.throughput.busiest
    return capacity(batcher, busiest, limiting(batcher, busiest), last_key(batcher))


def _utilization(scheduler: Scheduler, serves: Capacity | None) -> float:
    traffic = scheduler.traffic
    return traffic.busy if serves is None else min(1.0, traffic.offered_rows_per_s / serves.rows_per_s)
