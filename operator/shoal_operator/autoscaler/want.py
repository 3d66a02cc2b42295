"""Rates -> replicas.

Absolute: of totals over all pods, never of the present count, so pods that are starting cannot make it run away.

    concurrency   rows in the system / target            target: targetQueueDepth, or learned, or two full batches
    rate          (asked for + backlog / drain) / (0.8 x what a replica serves)      with a learned capacity
                  less than 0.8 where rows arrive in clumps

The rate counts with a latency objective: admission then holds the queue so short that rows say little, and what it
refuses is demand. Without an objective it counts while rows are refused. Pods that refuse are full, so the rows that
they hold are as many as the pods: with a learned target only the rate counts then.
"""

import math
from dataclasses import dataclass

from shoal_operator.autoscaler.aim import HEADROOM, LEAST, Aim, target_rows
from shoal_operator.autoscaler.signals import HICCUP, Rates, Signals
from shoal_schema.load import Capacity

LATE = HICCUP / 2
"""Share of time in which clumps of arrivals may be too much: below what strain acts on."""
FIRST_START_S = 10.0
"""How long a replica takes to start, until one has been seen to."""


@dataclass(frozen=True, slots=True)
class Want:
    """Replicas, not yet whole, and what they come from.

    Args:
        amount: what is there.
        each: what a replica is for, of the same.
        unit: what that is, in words.
    """

    replicas: float
    amount: float
    each: float
    unit: str


def want(aim: Aim, signals: Signals, rates: Rates, start_s: float | None) -> Want:
    """Return the replicas that the rates of one window ask for.

    Args:
        aim: of the spec.
        signals: of now.
        rates: of the window.
        start_s: how long a replica takes to start; None before one was seen to.
    """
    target = target_rows(aim, signals.capacity)
    by_rows = Want(rates.rows / target, rates.rows, target, "rows in flight")
    capacity = signals.capacity
    if capacity is None or (aim.objective_s is None and not rates.refuses):
        return by_rows
    each = max(_planned_rows_per_s(aim, signals, rates, capacity), LEAST)
    # Queued rows count too, unless the ready pods serve them before a new replica could be ready.
    start_s = FIRST_START_S if start_s is None else start_s
    backlog = signals.queued_rows - signals.ready * HEADROOM * capacity.rows
    spare_rows_per_s = signals.ready * capacity.rows_per_s - rates.offered_rows_per_s
    drained = backlog <= 0 or backlog <= spare_rows_per_s * start_s
    backlog_rows_per_s = 0.0 if drained else backlog / max(aim.objective_s or 0.0, start_s, 1.0)
    amount = rates.offered_rows_per_s + backlog_rows_per_s
    by_rate = Want(amount / each, amount, each, "rows/s asked for")
    if aim.target_queue_depth is None and rates.refuses:
        return by_rate  # pods that refuse are full, however much is asked for: their rows would make pods of pods
    return max(by_rows, by_rate, key=lambda each: each.replicas)


def _planned_rows_per_s(aim: Aim, signals: Signals, rates: Rates, capacity: Capacity) -> float:
    """Return how many rows a second a replica is to be asked for: a share of what it can.

    Less where they come in clumps, though the busiest tick of late is the most to be ready for. In a system that serves
    c rows a second, what is there takes longer than the objective d for a share exp(-2 (c - a) c d / (i a)) of the time
    where a rows a second arrive with the dispersion i (a Brownian queue, in heavy traffic): c is solved for.
    """
    offered = rates.offered_rows_per_s
    if aim.objective_s is None or not offered:
        return HEADROOM * capacity.rows_per_s
    spread = signals.dispersion * offered * math.log(1 / LATE) / (2 * aim.objective_s)
    needed = offered / 2 + math.sqrt(offered**2 / 4 + spread)
    ready_for = max(offered, min(HEADROOM * needed, signals.busiest_rows_per_s))
    return HEADROOM * offered / ready_for * capacity.rows_per_s
