"""The rule that determines the bottleneck of a replica, shared by all reports."""

from shoal_proxy.batching.rates import BusiestSecond
from shoal_schema.interfaces.bounds import Bound

BUSY = 0.9
FULL = 0.9
"""Shares of a second, and of a batch's rows, from which a resource counts as exhausted."""
ENOUGH_BATCHES = 20
"""Minimum number of batches for a 95th percentile; with fewer, it equals the slowest batch."""


def bound(busiest: BusiestSecond | None, *, batches: int, model_ms: tuple[float, float], host_ms: float) -> Bound:
    """Return the resource that is exhausted first when the load grows.

    Args:
        busiest: the second with the most served rows; None before the first request.
        batches: number of completed batches; fewer than 20 are inconclusive.
        model_ms: bounds of the model's own time for a batch.
        host_ms: the host's time for a batch; 0 if it cannot be measured separately from the model's time.
    """
    if busiest is not None and busiest.proxy_busy >= BUSY:
        return Bound.PROXY
    # Inconclusive where the host's work lies within the bounds of the model's time.
    least_ms, most_ms = model_ms
    if batches < ENOUGH_BATCHES or host_ms <= 0 or least_ms <= host_ms <= most_ms:
        return Bound.UNKNOWN
    return Bound.HOST if most_ms < host_ms else Bound.MODEL


def is_saturated(busiest: BusiestSecond | None, *, room_rows: int) -> bool:
    """Return whether the busiest second used all capacity of runtime or proxy.

    Args:
        busiest: the second in which most rows were served.
        room_rows: rows of a full batch.
    """
    if busiest is None:
        return False
    # A runtime that is always busy with small batches could still run larger ones.
    full = busiest.runtime_busy >= BUSY and busiest.batch_rows >= FULL * room_rows
    return full or busiest.proxy_busy >= BUSY
