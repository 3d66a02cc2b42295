"""Arrivals in clumps: when the next request tends to follow at once, an idle runtime is worth 0.2 ms of patience.

Callers that fan out, retry together or sit behind a gateway that batches its own wake-ups send many requests within
microseconds. Starting the first of a clump alone makes the rest wait for it. As long as more than half of all requests
come less than `PATIENCE_S` after the one before, a batch for an idle runtime is held until nothing has come for that
long. With Poisson arrivals at any usual rate the share stays small, and nothing is held.
"""

from shoal_proxy.batching.pending import NEVER_S

PATIENCE_S = 0.0002
MAX_HOLD_S = 0.001
"""A clump longer than this is a crowd; the runtime may as well begin with its first."""
_SHARE = 0.5
_WEIGHT = 0.01


class Clumps:
    """The share of requests that came right after another."""

    __slots__ = ("_last_s", "_share")

    def __init__(self) -> None:
        self._last_s = -NEVER_S
        self._share = 0.0

    def arrived(self, now_s: float) -> None:
        """Count an arrival, served or refused."""
        self._share += _WEIGHT * ((now_s - self._last_s <= PATIENCE_S) - self._share)
        self._last_s = now_s

    def hold_s(self, now_s: float, oldest_s: float) -> float:
        """Return how long to wait for the rest of a clump, whose first came at ``oldest_s``; 0 for not at all."""
        if self._share <= _SHARE:
            return 0.0
        return max(0.0, min(self._last_s + PATIENCE_S, oldest_s + MAX_HOLD_S) - now_s)
