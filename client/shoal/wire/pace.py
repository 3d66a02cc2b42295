"""How much is asked of a service at once by whoever has time: more while it takes it, half where it refuses. Pure."""

from dataclasses import dataclass

MOST = 16
"""Requests at once."""
USUAL_PAUSE_S = 1.0
"""Of a refusal that does not say when to come back, or a server that is not there."""
LONGEST_PAUSE_S = 600.0
"""Whatever is said: a server that is better again may have said nonsense before."""


@dataclass(slots=True)
class Pace:
    """What may be asked now.

    Attributes:
        limit: requests at once, on the average.
        closed_until_s: nothing is asked before, in monotonic seconds.
    """

    limit: float = 1.0
    closed_until_s: float = 0.0

    def wait_s(self, running: int, now_s: float) -> float | None:
        """Return how long to wait before one more request; None: until one that runs has ended."""
        if now_s < self.closed_until_s:
            return self.closed_until_s - now_s
        return 0.0 if running < max(1, int(self.limit)) else None

    def answered(self) -> None:
        """Take that a request was answered."""
        self.limit = min(MOST, self.limit + 1 / max(1.0, self.limit))

    def refused(self, now_s: float, retry_after_s: float | None) -> None:
        """Take that a request was refused, and when to come back."""
        if now_s >= self.closed_until_s:  # of several that were refused together, the first counts
            self.limit = max(1.0, self.limit / 2)
        pause_s = USUAL_PAUSE_S if retry_after_s is None else min(retry_after_s, LONGEST_PAUSE_S)
        self.closed_until_s = max(self.closed_until_s, now_s + pause_s)
