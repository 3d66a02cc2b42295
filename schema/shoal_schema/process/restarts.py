"""Delay before a process that has exited starts again."""

from dataclasses import dataclass, replace

MIN_DELAY_S = 0.5
MAX_DELAY_S = 30.0
HEALTHY_S = 60.0
"""Lifetime after which a process counts as healthy, and the delays start over."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delay between starts, from 0.5 s to 30 s."""

    exits: int = 0
    """Consecutive exits."""

    @property
    def delay_s(self) -> float:
        """The delay before the next start; 0 before the first exit."""
        if not self.exits:
            return 0.0
        return min(MAX_DELAY_S, MIN_DELAY_S * 2.0 ** min(self.exits - 1, 16))


def after_exit(backoff: Backoff, *, started_s: float, now_s: float) -> Backoff:
    """Return the backoff after a process that started at ``started_s`` exited at ``now_s``."""
    # A healthy process counts as the first exit of a new series.
    healthy = now_s - started_s >= HEALTHY_S
    return replace(backoff, exits=1 if healthy else backoff.exits + 1)
