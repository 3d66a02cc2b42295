"""Which of several addresses a request goes to, by how long each says that it would take. Pure: time is an argument.

Each answer tells how long a request would have taken that arrived then (`endpoint-load-metrics`). Of two drawn
at random, the one with the shorter wait is asked, so that many clients which know the same do not all go to the same.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Final

ASKING: Final = ("endpoint-load-metrics-format", "TEXT")
"""The header of a request whose answer is to tell."""
_TOLD: Final = "endpoint-load-metrics"
_WAIT: Final = "expected_wait_seconds="
_LONGEST: Final = 1024
BELIEVED_S: Final = 1.0
"""After so long a wait says nothing any more, and the address is as good as one that was never asked."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
"""An address that cannot be reached is left alone, each time for twice as long."""


class Place:
    """One address: what it said last, and what has been sent there since."""

    __slots__ = ("failures", "sent", "shunned_until_s", "told_s", "wait_s")

    def __init__(self) -> None:
        self.wait_s = 0.0
        self.told_s = float("-inf")
        self.sent = 0
        """Requests since then."""
        self.failures = 0
        self.shunned_until_s = float("-inf")

    def answered(self, headers: Mapping[str, str], now_s: float) -> None:
        """Learn from an answer, whatever its status."""
        self.failures, self.sent = 0, 0
        wait_s = expected_wait_s(headers.get(_TOLD, ""))
        self.wait_s, self.told_s = (0.0, float("-inf")) if wait_s is None else (wait_s, now_s)

    def failed(self, now_s: float) -> None:
        """Note that it could not be reached."""
        self.shunned_until_s = now_s + min(FIRST_PAUSE_S * 2.0 ** min(self.failures, 16), LONGEST_PAUSE_S)
        self.failures += 1

    def score(self, now_s: float) -> tuple[float, float, int]:
        """Return what is less for a better place: until when it is left alone, its wait, and what was sent since."""
        wait_s = self.wait_s if now_s - self.told_s <= BELIEVED_S else 0.0
        return max(0.0, self.shunned_until_s - now_s), wait_s * (1 + self.sent), self.sent


def choose(places: Sequence[Place], now_s: float, sample: Callable[[int, int], Sequence[int]]) -> int:
    """Return the number of the place to ask; ``sample(n, k)`` draws so many of the first n numbers.

    Places that are left alone are drawn only where there are no others.
    """
    open_places = [number for number, place in enumerate(places) if now_s >= place.shunned_until_s]
    numbers = open_places or list(range(len(places)))
    drawn = [numbers[index] for index in sample(len(numbers), min(2, len(numbers)))]
    return min(drawn, key=lambda number: places[number].score(now_s))


def expected_wait_s(told: str) -> float | None:
    """Return the expected wait of a text report; None where it holds none that makes sense."""
    if not told.startswith("TEXT ") or len(told) > _LONGEST:
        return None
    _, found, rest = told.partition(_WAIT)
    try:
        wait_s = float(rest.partition(",")[0]) if found else -1.0
    except ValueError:
        return None
    return wait_s if isfinite(wait_s) and wait_s >= 0 else None
