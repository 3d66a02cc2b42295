"""Hold a batch for an idle runtime by 0.2 ms if requests arrive in clumps.

Clients that fan out, retry together, or sit behind a gateway that batches its wake-ups send many requests within
microseconds. Starting the first request of a clump alone makes the rest wait for it. While more than half of all
requests arrive less than `PATIENCE_S` after the previous request, a batch for an idle runtime is held until no request
has arrived for `PATIENCE_S`. With Poisson arrivals at usual rates the share is small, and no batch is held.
"""

from shoal_proxy.batching.pending import NEVER_S

PATIENCE_S = 0.0002
MAX_HOLD_S = 0.001
"""Longest clump to wait for, from its first request."""
_SHARE = 0.5
"""Share of requests in clumps above which batches are held."""
_WEIGHT = 0.01
"""Weight of the newest arrival in the moving average."""


class Clumps:
    """Moving average of the share of requests that arrive in clumps."""

    __slots__ = ("_last_s", "_share")

    def __init__(self) -> None:
        self._last_s = -NEVER_S
        self._share = 0.0

    def arrived(self, now_s: float) -> None:
        """Record the arrival of a request, admitted or rejected."""
        self._share += _WEIGHT * ((now_s - self._last_s <= PATIENCE_S) - self._share)
        self._last_s = now_s

    def hold_s(self, now_s: float, oldest_s: float) -> float:
        """Return the time (s) to wait for the rest of a clump that began at ``oldest_s``."""
        if self._share <= _SHARE:
            return 0.0
        # Until the clump has paused, or has lasted too long.
        return max(0.0, min(self._last_s + PATIENCE_S, oldest_s + MAX_HOLD_S) - now_s)
