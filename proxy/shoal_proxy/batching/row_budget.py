"""Device-time budget of row checks: a fixed share, and a share of idle time."""

from typing import Final

MIN_SHARE: Final = 0.006
"""Share of the device's time for checks at any load below 1."""
IDLE_SHARE: Final = 0.08
"""Additional share where clients need none of the device."""
BURST_S: Final = 0.1
"""Most of the budget that is saved up."""
_MIN_RATE: Final = 1e-4
_MIN_WAIT_S: Final = 0.001


class RowCheckBudget:
    """Device time (s) that checks may use now: earned as time passes, spent by each check."""

    __slots__ = ("_counted_s", "left_s", "spent_s")

    def __init__(self) -> None:
        self.left_s = 0.0
        self.spent_s = 0.0
        self._counted_s = -1.0

    def earn(self, load: float, now_s: float) -> None:
        """Add the budget of the time since the last call.

        Args:
            load: share of the device that clients need.
            now_s: monotonic time (s).
        """
        if self._counted_s >= 0:
            self.left_s = min(BURST_S, self.left_s + (now_s - self._counted_s) * _rate(load))
        self._counted_s = now_s

    def spend(self, seconds: float) -> None:
        """Subtract the device time (s) of a check."""
        self.left_s -= seconds
        self.spent_s += seconds

    def wait_s(self, load: float) -> float:
        """Return the time (s) until budget is available; 0 if it is available now."""
        if self.left_s > 0:
            return 0.0
        return max(_MIN_WAIT_S, -self.left_s / max(_rate(load), _MIN_RATE))


def _rate(load: float) -> float:
    unused = 1 - load
    return MIN_SHARE + IDLE_SHARE * unused * unused if unused > 0 else 0.0
