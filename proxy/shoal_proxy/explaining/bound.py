"""The one rule that says what bounds a replica; everybody who names a bound names what it concludes."""

from shoal_proxy.batching.throughput import Busiest
from shoal_schema.bounds import Bound

BUSY = 0.9
FULL = 0.9
"""Share of a second, and of a batch's room, beyond which there is no more to be had."""
ENOUGH_BATCHES = 20
"""From which on their times are more than a guess: the 95th percentile of fewer is the slowest of them."""


def bound(busiest: Busiest | None, *, batches: int, model_ms: tuple[float, float], host_ms: float) -> Bound:
    """Return what is used up first.

    Args:
        busiest: the second in which most rows were served; None before the first request.
        batches: that have run; the times of fewer than 20 conclude nothing.
        model_ms: what the model's own time for a batch lies between.
        host_ms: the host's work around a batch; 0 where nobody tells it from the model's time.
    """
    if busiest is not None and busiest.proxy_busy >= BUSY:
        return Bound.PROXY
    least_ms, most_ms = model_ms
    if batches < ENOUGH_BATCHES or host_ms <= 0 or least_ms <= host_ms <= most_ms:
        return Bound.UNKNOWN
    return Bound.HOST if most_ms < host_ms else Bound.MODEL


def at_its_end(busiest: Busiest | None, *, room_rows: int) -> bool:
    """Return whether the busiest second had no room left: batches of up to ``room_rows`` without a pause, or a core."""
    if busiest is None:
        return False
    full = busiest.runtime_busy >= BUSY and busiest.batch_rows >= FULL * room_rows
    return full or busiest.proxy_busy >= BUSY
