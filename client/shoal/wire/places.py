"""Which of several addresses a request goes to, by how long each says that it would take. Pure: time is an argument.

Each answer tells how long a request would have taken that arrived then (`endpoint-load-metrics`). Of two drawn
at random, the one with the shorter wait is asked, so that many clients which know the same do not all go to the same.
An address that answers without such a promise comes after those that give one, and one that refuses, fails or cannot be
reached is left alone for a while, each time for twice as long: whoever fails is quick, and would get everything.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Final

from shoal_schema.headers import EXECUTED

ASKING: Final = ("endpoint-load-metrics-format", "TEXT")
"""The header of a request whose answer is to tell."""
_TOLD: Final = "endpoint-load-metrics"
_WAIT: Final = "expected_wait_seconds="
_LONGEST: Final = 1024
BELIEVED_S: Final = 1.0
"""After so long a wait says nothing any more, and the address is tried once, as one that was never asked."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
"""An address that cannot be reached, or fails time after time."""
FIRST_REFUSED_PAUSE_S: Final = 0.05
LONGEST_REFUSED_PAUSE_S: Final = 2.0
"""One that refuses may have room again soon."""
FAILURES_IN_A_ROW: Final = 2
"""One failure may be the request's own; so many one after another are the server's."""
MOST_TRIES: Final = 3
"""Addresses that one request is sent to as long as none of them runs it: where all are full it ends soon."""
_UNKNOWN_S: Final = float("inf")
_REFUSES: Final = frozenset({429, 502, 503})
_NOT_THE_ITEMS: Final = frozenset({404, 405, 408, 415})
"""Below 500, and yet more likely about the server than about what was sent to it."""


class Place:
    """One address: what it said last, and what has been sent there since."""

    __slots__ = ("errors", "failures", "sent", "shunned_until_s", "told_s", "under_way", "wait_s")

    def __init__(self) -> None:
        self.wait_s = _UNKNOWN_S
        """What it promised last; infinity where its last answer held no promise."""
        self.told_s = float("-inf")
        """When it answered last."""
        self.sent = 0
        """Requests since then."""
        self.under_way = 0
        self.failures = 0
        """Times in a row that it was left alone."""
        self.errors = 0
        """Answers in a row that failed."""
        self.shunned_until_s = float("-inf")

    def answered(self, status: int, headers: Mapping[str, str], now_s: float) -> None:
        """Learn from an answer."""
        wait_s = expected_wait_s(headers.get(_TOLD, ""))
        self.wait_s, self.told_s, self.sent = _UNKNOWN_S if wait_s is None else wait_s, now_s, 0
        if status in _REFUSES and headers.get(EXECUTED) == "no":
            self._shun(FIRST_REFUSED_PAUSE_S, LONGEST_REFUSED_PAUSE_S, now_s)
        elif status in _REFUSES:
            self.failed(now_s)  # the call is lost
        elif status >= 500 or status in _NOT_THE_ITEMS or (status != 200 and status < 400):
            self.errors += 1
            self.wait_s = _UNKNOWN_S  # a model that fails is quick, and promises to be
            if self.errors >= FAILURES_IN_A_ROW:
                self._shun(FIRST_PAUSE_S, LONGEST_PAUSE_S, now_s)
        else:
            self.failures = self.errors = 0

    def failed(self, now_s: float) -> None:
        """Note that it could not be reached, or did not answer."""
        self._shun(FIRST_PAUSE_S, LONGEST_PAUSE_S, now_s)

    def score(self, now_s: float) -> tuple[float, float, int]:
        """Return what is less for a better place: until when it is left alone, its wait, and what was sent since."""
        if now_s - self.told_s <= BELIEVED_S:
            wait_s = self.wait_s * (1 + self.sent)
        else:
            wait_s = _UNKNOWN_S if self.under_way else 0.0  # one finds out for all
        return max(0.0, self.shunned_until_s - now_s), wait_s, self.sent

    def _shun(self, first_s: float, longest_s: float, now_s: float) -> None:
        # Those that were under way together are one failure.
        if now_s >= self.shunned_until_s:
            self.shunned_until_s = now_s + min(first_s * 2.0 ** min(self.failures, 16), longest_s)
            self.failures += 1


def choose(places: Sequence[Place], now_s: float, sample: Callable[[int, int], Sequence[int]]) -> int:
    """Return the number of the place to ask; ``sample(n, k)`` draws so many of the first n numbers.

    Places that are left alone are drawn only where there are no others.
    """
    return _drawn(places, open_places(places, now_s) or range(len(places)), now_s, sample)


def choose_other(
    places: Sequence[Place], tried: Sequence[int], now_s: float, sample: Callable[[int, int], Sequence[int]]
) -> int | None:
    """Return where a request goes that did not run at those ``tried``; None where it goes nowhere else."""
    others = [number for number in open_places(places, now_s) if number not in tried]
    return _drawn(places, others, now_s, sample) if others and len(tried) < MOST_TRIES else None


def open_places(places: Sequence[Place], now_s: float) -> list[int]:
    """Return the numbers of the places that are not left alone."""
    return [number for number, place in enumerate(places) if now_s >= place.shunned_until_s]


def not_run(method: str, status: int, headers: Mapping[str, str]) -> bool:
    """Return whether an answer says that the server cannot serve now, and that nothing ran: another one may."""
    return status in _REFUSES and (method == "GET" or headers.get(EXECUTED) == "no")


def _drawn(
    places: Sequence[Place], numbers: Sequence[int], now_s: float, sample: Callable[[int, int], Sequence[int]]
) -> int:
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
