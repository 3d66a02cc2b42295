"""Find the highest rate that meets the objective, and the number of requests needed to measure it."""

import math
from collections.abc import Callable, Sequence

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.simulator.engine import SimulatedRequest

DOUBLINGS = 12
"""Most times that a trace is made twice as fast, or half as fast, in search of its limit."""
_LASTS = 20
"""Least length of a trace, in objectives: requests that wait at its end take up to one objective more."""


def largest(is_met: Callable[[float], bool], most: float = math.inf) -> float:
    """Return the largest factor up to ``most`` for which ``is_met`` holds, to 0.5 %.

    0 if it holds for no factor, infinity if it holds for all.
    """
    # Double the factor until it fails, then search between the last two; or halve it until it holds.
    low = high = min(1.0, most)
    if is_met(high):
        for _ in range(DOUBLINGS):
            if high >= most:
                break
            low, high = high, min(2 * high, most)
            if not is_met(high):
                return _between(is_met, low, high)
        return most if high >= most else math.inf
    for _ in range(DOUBLINGS):
        low, high = low / 2, low
        if is_met(low):
            return _between(is_met, low, high)
    return 0.0


def enough_requests(requests: Sequence[SimulatedRequest], rate_per_s: float) -> int | None:
    """Return the number of requests needed to measure a rate reliably.

    Returns None if ``requests`` are enough.
    """
    longest_s = max([each.soft_deadline_s - each.arrived_s for each in requests if each.soft_deadline_s < NEVER_S])
    enough = math.ceil(_LASTS * longest_s * rate_per_s)
    return enough if len(requests) < enough else None


def _between(is_met: Callable[[float], bool], low: float, high: float) -> float:
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_met(middle) else (low, middle)
    return low
