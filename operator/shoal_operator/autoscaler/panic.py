"""When replicas may not fall, and when one more is needed whatever the rates say.

Panic, after Knative's autoscaler: the short window wants twice what is ready. It lasts until a minute has passed
without that, and while it lasts nothing is taken away. Strain: rows are refused, or wait longer than the objective,
three ticks in a row; then one replica more than are ready.
"""

from shoal_operator.autoscaler.aim import Aim
from shoal_operator.autoscaler.signals import Signals

THRESHOLD = 2.0
HOLD_S = 60.0
STRAINED_TICKS = 3
_BUSY = 0.8
_ASKED = 0.5
"""Pods that are idle for more than this, or of whose capacity less is asked, are strained by who sends where."""


def panic_until_s(until_s: float, short_replicas: float, ready: int, now_s: float, window_s: float) -> float:
    """Return until when there is panic: no longer than the window in which a want counts."""
    return now_s + min(HOLD_S, window_s) if short_replicas >= THRESHOLD * max(ready, 1) else until_s


def strained(aim: Aim, signals: Signals) -> bool:
    """Return whether callers are worse off than they should be for want of replicas."""
    last, capacity = signals.last, signals.capacity
    if last.busy < _BUSY * signals.ready:
        return False
    if capacity is not None and last.offered_rows_per_s < _ASKED * signals.ready * capacity.rows_per_s:
        return False
    if last.refuses:
        return True
    return aim.objective_s is not None and last.queued_rows > aim.objective_s * last.answered_rows_per_s > 0
