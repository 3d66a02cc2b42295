"""Number of replicas that a service's load requires.

It is computed from totals over all pods, never from the current count, so that starting pods cause no runaway.

    concurrency   queued and running rows / target      target: targetQueueDepth, or measured, or two full batches
    rate          (arrived rows + backlog / drain time) / (0.8 x capacity of a replica)    with a measured capacity;
                  less than 0.8 if many rows arrive at once

With a latency objective, the rate counts too: admission keeps queues short, so the queued rows do not show the load,
and rejected rows are demand. Without an objective, the rate counts only while rows are rejected.

Pods that reject rows are full: their total of rows only shows how many pods there are. So while rows are rejected, the
concurrency counts only with targetQueueDepth.
"""

import math
from dataclasses import dataclass

from shoal_operator.scaling.signals import NEGLIGIBLE_SHARE, Rates, Signals
from shoal_operator.scaling.targets import HEADROOM, LEAST, ScalingTargets, target_rows
from shoal_schema.interfaces.load import Capacity

LATE = NEGLIGIBLE_SHARE / 2
"""Share of time in which groups of arrivals may exceed the capacity; less than what causes strain."""
FIRST_START_S = 10.0
"""Assumed start time of a replica before the first one was measured."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Fractional number of replicas that a load requires, with its inputs."""

    replicas: float
    amount: float
    """The load, in ``unit``."""
    each: float
    """Target load of one replica, in ``unit``."""
    unit: str


def recommend(targets: ScalingTargets, signals: Signals, rates: Rates, start_s: float | None) -> Recommendation:
    """Return the replicas that the rates of one window require.

    Args:
        targets: scaling targets of the service's spec.
        signals: load of the service at the current tick.
        rates: mean load over the window.
        start_s: time that a replica takes to start (s); None if unknown.
    """
    target = target_rows(targets, signals.capacity)
    by_rows = Recommendation(rates.rows / target, rates.rows, target, "rows in flight")
    # Rates need a measured capacity; without an objective they count only while rows are rejected.
    capacity = signals.capacity
    if capacity is None or (targets.objective_s is None and not rates.rejects):
        return by_rows
    each = max(_planned_rows_per_s(targets, signals, rates, capacity), LEAST)
    # Queued rows count too, unless the ready pods serve them before a new replica could be ready.
    start_s = FIRST_START_S if start_s is None else start_s
    backlog = signals.queued_rows - signals.ready * HEADROOM * capacity.rows
    spare_rows_per_s = signals.ready * capacity.rows_per_s - rates.offered_rows_per_s
    drained = backlog <= 0 or backlog <= spare_rows_per_s * start_s
    backlog_rows_per_s = 0.0 if drained else backlog / max(targets.objective_s or 0.0, start_s, 1.0)
    amount = rates.offered_rows_per_s + backlog_rows_per_s
    by_rate = Recommendation(amount / each, amount, each, "rows/s offered")
    # Pods that reject are full at any load: their rows in the system only reflect their number.
    if targets.target_queue_depth is None and rates.rejects:
        return by_rate
    return max(by_rows, by_rate, key=lambda each: each.replicas)


def _planned_rows_per_s(targets: ScalingTargets, signals: Signals, rates: Rates, capacity: Capacity) -> float:
    """Return the rows per second to plan for a replica.

    It is a share of the replica's capacity. The share is smaller if many rows arrive at once, down to what the busiest
    recent tick requires. It follows from the model of a Brownian queue in heavy traffic. Let c be the rows served per
    second, a the rows that arrive per second, i their dispersion and d the latency objective. The objective is exceeded
    for the share exp(-2 (c - a) c d / (i a)) of the time. This is solved for c.
    """
    offered = rates.offered_rows_per_s
    if targets.objective_s is None or not offered:
        return HEADROOM * capacity.rows_per_s
    spread = signals.dispersion * offered * math.log(1 / LATE) / (2 * targets.objective_s)
    needed = offered / 2 + math.sqrt(offered**2 / 4 + spread)
    ready_for = max(offered, min(HEADROOM * needed, signals.busiest_rows_per_s))
    return HEADROOM * offered / ready_for * capacity.rows_per_s
