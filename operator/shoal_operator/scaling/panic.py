"""Panic, in which replicas do not fall, and strain, which adds a replica.

Panic begins when the short window recommends twice the ready replicas (as in Knative's autoscaler). No replica is
removed until a minute after the last such recommendation. Strain begins when rows are rejected, or wait longer than the
objective, in three ticks in a row. Then one more replica than the ready ones is recommended.
"""

from shoal_operator.scaling.signals import Signals
from shoal_operator.scaling.targets import ScalingTargets

THRESHOLD = 2.0
HOLD_S = 60.0
STRAINED_TICKS = 3
_MIN_BUSY = 0.8
_MIN_UTILIZATION = 0.5
"""Minimum use of time (`_MIN_BUSY`) and capacity (`_MIN_UTILIZATION`): below, the cause is uneven routing."""


def panic_until_s(until_s: float, short_replicas: float, ready: int, now_s: float, window_s: float) -> float:
    """Return the time at which the panic ends (monotonic s)."""
    return now_s + min(HOLD_S, window_s) if short_replicas >= THRESHOLD * max(ready, 1) else until_s


def strained(targets: ScalingTargets, signals: Signals) -> bool:
    """Return whether busy pods reject rows or exceed the latency objective."""
    last, capacity = signals.last, signals.capacity
    # Idle pods or spare capacity: more replicas would not help.
    if last.busy < _MIN_BUSY * signals.ready:
        return False
    if capacity is not None and last.offered_rows_per_s < _MIN_UTILIZATION * signals.ready * capacity.rows_per_s:
        return False
    if last.rejects:
        return True
    return targets.objective_s is not None and last.queued_rows > targets.objective_s * last.answered_rows_per_s > 0
