"""Panic, in which replicas do not fall, and strain, which adds a replica.

Panic (as in Knative's autoscaler): the short window wants twice the ready replicas. It ends after a minute without
that; until then no replica is removed. Strain: rows are rejected, or wait longer than the objective, in three ticks in
a row; then one replica more than are ready is wanted.
"""

from shoal_operator.autoscaler.aim import Aim
from shoal_operator.autoscaler.signals import Signals

THRESHOLD = 2.0
HOLD_S = 60.0
STRAINED_TICKS = 3
_BUSY = 0.8
_ASKED = 0.5
"""Minimum use of time (`_BUSY`) and of capacity (`_ASKED`): below, the strain comes from uneven routing."""


def panic_until_s(until_s: float, short_replicas: float, ready: int, now_s: float, window_s: float) -> float:
    """Return the end of the panic, at most one window away."""
    return now_s + min(HOLD_S, window_s) if short_replicas >= THRESHOLD * max(ready, 1) else until_s


def strained(aim: Aim, signals: Signals) -> bool:
    """Return whether clients are affected by too few replicas."""
    last, capacity = signals.last, signals.capacity
    # Idle pods or spare capacity: more replicas would not help.
    if last.busy < _BUSY * signals.ready:
        return False
    if capacity is not None and last.offered_rows_per_s < _ASKED * signals.ready * capacity.rows_per_s:
        return False
    if last.refuses:
        return True
    return aim.objective_s is not None and last.queued_rows > aim.objective_s * last.answered_rows_per_s > 0
