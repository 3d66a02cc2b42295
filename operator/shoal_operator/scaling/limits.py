"""Rate limits of a service's replicas, and the choice of pods to remove."""

import math
from collections.abc import Mapping

TOLERANCE = 1.1
"""A replica is removed only if the rest suffice for a tenth more load, so that noise has no effect."""
PERIOD_S = 60.0
"""Period in which the count falls by half at most."""
UP_PERIOD_S = 15.0
UP_FACTOR, UP_LEAST = 4, 10
"""The count rises at most fourfold in `UP_PERIOD_S`, or by ten: this bounds the cost of a wrong reading."""
_EPS = 1e-6

ReplicaHistory = tuple[tuple[float, int], ...]
"""Pairs of monotonic time (s) and replicas."""


def pods_to_remove(rows: Mapping[str, float], count: int) -> list[str]:
    """Return the uids of the ``count`` pods with the fewest rows in flight."""
    return sorted(rows, key=lambda uid: (rows[uid], uid))[: max(0, count)]


def rounded_up(replicas: float) -> int:
    """Return the replicas rounded up, with tolerance for rounding errors."""
    return math.ceil(min(replicas, 1e9) - _EPS)


def record_recommendation(
    recommendations: ReplicaHistory, replicas: float, now_s: float, window_s: float
) -> ReplicaHistory:
    """Append a recommendation; drop earlier ones that are lower or expired."""
    count = rounded_up(replicas)
    return (*(each for each in recommendations if each[0] > now_s - window_s and each[1] > count), (now_s, count))


def increase_limit(raised: ReplicaHistory, replicas: int) -> int:
    """Return the highest number of replicas that the rate limit allows.

    Args:
        raised: counts before the recent increases.
        replicas: the current count.
    """
    base = min((count for _, count in raised), default=replicas)
    return max(UP_FACTOR * base, base + UP_LEAST)


def decrease_limit(lowered_s: float, replicas: int, now_s: float, window_s: float) -> int:
    """Return the lowest number of replicas that the rate limit allows.

    It is half the current count, or the current count shortly after a decrease.

    Args:
        lowered_s: time of the last decrease (monotonic s).
        replicas: the current count.
        now_s: monotonic time (s).
        window_s: time for which replicas do not fall below a recommendation (s).
    """
    return replicas if now_s - lowered_s < min(PERIOD_S, window_s) else (replicas + 1) // 2
