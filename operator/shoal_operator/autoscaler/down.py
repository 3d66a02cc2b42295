"""How fast the count may change, down by what was wanted of late and up by what came up of late; and who goes."""

import math
from collections.abc import Mapping

TOLERANCE = 1.1
"""A replica leaves when a tenth more than there is would do without it: noise around a whole number changes nothing."""
PERIOD_S = 60.0
"""Down at most by half in it."""
UP_PERIOD_S = 15.0
UP_FACTOR, UP_LEAST = 4, 10
"""Up at most fourfold in it, or by ten: a bound on what one wrong reading can cost, not on a burst."""
_EPS = 1e-6

Counts = tuple[tuple[float, int], ...]
"""Replicas by time (s)."""


def victims(rows: Mapping[str, float], count: int) -> list[str]:
    """Return the uids of so many pods with whom least is lost: those with the fewest rows in flight."""
    return sorted(rows, key=lambda uid: (rows[uid], uid))[: max(0, count)]


def whole(replicas: float) -> int:
    """Return the whole replicas that hold so many."""
    return math.ceil(min(replicas, 1e9) - _EPS)


def remember(wants: Counts, replicas: float, now_s: float, window_s: float) -> Counts:
    """Return the wants that the highest of a window is found in: falling, the newest last."""
    count = whole(replicas)
    return (*(each for each in wants if each[0] > now_s - window_s and each[1] > count), (now_s, count))


def most_up(raised: Counts, replicas: int) -> int:
    """Return how far the count may rise now; ``raised`` are the counts before the rises of the last `UP_PERIOD_S`."""
    base = min((count for _, count in raised), default=replicas)
    return max(UP_FACTOR * base, base + UP_LEAST)


def least_down(lowered_s: float, replicas: int, now_s: float, window_s: float) -> int:
    """Return how far the count may fall now, when it fell last at ``lowered_s``."""
    return replicas if now_s - lowered_s < min(PERIOD_S, window_s) else (replicas + 1) // 2
