"""Concurrency of low-priority work: additive increase while requests succeed, halved on a rejection. Pure."""

from dataclasses import dataclass

MAX_CONCURRENCY = 16
"""Concurrent requests."""
DEFAULT_PAUSE_S = 1.0
"""After a rejection without ``Retry-After``, or a failed connection."""
MAX_PAUSE_S = 600.0
"""Bound on ``Retry-After``, which a broken server may send arbitrarily long."""


@dataclass(slots=True)
class ConcurrencyLimiter:
    """Limit of concurrent requests, which grows with successes and halves on a rejection."""

    limit: float = 1.0
    """Mean number of concurrent requests."""
    closed_until_s: float = 0.0
    """Monotonic time before which no request is sent."""

    def wait_s(self, running: int, now_s: float) -> float | None:
        """Return the time to wait before the next request; None means until a running request ends."""
        if now_s < self.closed_until_s:
            return self.closed_until_s - now_s
        # At least one request, or the limit could never recover.
        return 0.0 if running < max(1, int(self.limit)) else None

    def record_success(self) -> None:
        """Raise the limit after a successful response, by one request per round trip."""
        self.limit = min(MAX_CONCURRENCY, self.limit + 1 / max(1.0, self.limit))

    def record_rejection(self, now_s: float, retry_after_s: float | None) -> None:
        """Halve the limit after a rejection, and pause for ``retry_after_s``."""
        if now_s >= self.closed_until_s:  # concurrent rejections count once
            self.limit = max(1.0, self.limit / 2)
        pause_s = DEFAULT_PAUSE_S if retry_after_s is None else min(retry_after_s, MAX_PAUSE_S)
        self.closed_until_s = max(self.closed_until_s, now_s + pause_s)
