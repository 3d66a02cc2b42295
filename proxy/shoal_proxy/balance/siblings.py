"""What is known of the other replicas, and which of them takes a request that would be late here.

A replica promises how long a request that arrives now would take. The promise is old when it is read, several may act
on it at once, and it may be a lie. So it is believed for a short time, rows given since it was made are added to it,
what is given away at once is bounded, and a sibling that does not keep its word is left alone for a while, each time
twice as long. Who fails is quick, and promises to be: errors count as well, unless requests fail here alike; and one
that failed gets one request at a time until it has answered one. Where all are full all promises are late, and nobody
is asked.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import isfinite
from typing import Final

NEVER_S: Final = float("inf")
BELIEVED_S: Final = 2.5
"""How long a promise counts: a few of the idle looks at a small fleet; a refusal corrects it sooner."""
LONGEST_WAIT_S: Final = 3600.0
"""A promise beyond that is none."""
FIRST_PAUSE_S: Final = 0.02
"""After a first refusal: about a small batch; what the sibling said with it counts besides."""
LONGEST_PAUSE_S: Final = 2.0
FIRST_LATE_PAUSE_S: Final = 0.05
FIRST_FAILED_PAUSE_S: Final = 0.5
"""After silence when it was asked for its load, a broken connection or answer, or failures in a row."""
LONGEST_FAILED_PAUSE_S: Final = 5.0
LEAST_FAILURES: Final = 0.1
"""Share of requests that fail anywhere, for all one knows: a model raises now and then."""
CHANCE: Final = 0.05
"""So many failures in a row as are less likely than this, at the share of those that fail here, are the sibling's."""
_TRAVEL_WEIGHT: Final = 0.2


class Ended(StrEnum):
    """What came of a hand-over: the label of the metric."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """The sibling would have been late too; the model did not run."""
    ERROR = "error"
    """The sibling's model, or its check, said what is wrong with the request, or with some of its rows."""
    FAILED = "failed"
    """The sibling's model failed as a whole: for this request, or for every one."""
    BROKEN = "broken"
    """The answer is none that a replica gives to this request."""
    LATE = "late"
    """No answer by when it was due."""
    LOST = "lost"
    """The connection broke."""
    CANCELLED = "cancelled"
    """The caller has gone."""


class Sibling:
    """One other replica: what it promised, what it was given since, and whether it kept its word."""

    __slots__ = ("asked_s", "errors", "failures", "given_rows", "is_self", "on_trial", "shunned_until_s",
                 "since_told_rows", "told_s", "travel_s", "wait_s")  # fmt: skip

    def __init__(self) -> None:
        self.wait_s = NEVER_S
        """What a request of one row would take that arrives there now."""
        self.told_s = -NEVER_S
        self.asked_s = -NEVER_S
        """When it was asked last, or told something unasked."""
        self.travel_s = 0.0
        """There and back."""
        self.given_rows = 0
        """Rows that are there now."""
        self.since_told_rows = 0
        self.failures = 0
        """Broken promises in a row."""
        self.errors = 0
        """Requests in a row that failed as a whole."""
        self.on_trial = False
        """It failed when it was asked last."""
        self.shunned_until_s = -NEVER_S
        self.is_self = False
        """It is this replica, under the address that others know it by."""

    def told(self, wait_s: float | None, now_s: float, travel_s: float | None = None) -> None:
        """Note a promise; None and what makes no sense is none."""
        sensible = wait_s is not None and isfinite(wait_s) and 0 <= wait_s <= LONGEST_WAIT_S
        self.wait_s = wait_s if wait_s is not None and sensible else NEVER_S
        self.told_s = self.asked_s = now_s
        self.since_told_rows = 0
        if travel_s is not None:
            weight = _TRAVEL_WEIGHT if self.travel_s else 1.0
            self.travel_s += weight * (travel_s - self.travel_s)

    def silent(self, now_s: float) -> None:
        """Note that it did not answer when it was asked."""
        self.wait_s = NEVER_S
        self.asked_s = now_s
        self._shun(FIRST_FAILED_PAUSE_S, LONGEST_FAILED_PAUSE_S, now_s)

    def given(self, rows: int) -> None:
        """Note rows that are on their way."""
        self.given_rows += rows
        self.since_told_rows += rows

    def ended(self, rows: int, end: Ended, now_s: float, own_failures: float = 0.0) -> None:
        """Note what came of them; ``own_failures`` is the share of requests that fail at this replica, 0 to 1."""
        self.given_rows -= rows
        if end is Ended.REFUSED:
            self._shun(FIRST_PAUSE_S, LONGEST_PAUSE_S, now_s)
        elif end is Ended.LATE:
            self._shun(FIRST_LATE_PAUSE_S, LONGEST_PAUSE_S, now_s)
        elif end is Ended.LOST or end is Ended.BROKEN:
            self._failed(now_s)
        elif end is Ended.FAILED:
            self.errors += 1
            if max(LEAST_FAILURES, own_failures) ** self.errors < CHANCE:
                self._failed(now_s)
        elif end is Ended.ANSWERED:
            self.failures = self.errors = 0
            self.on_trial = False

    def _failed(self, now_s: float) -> None:
        self.on_trial = True
        self._shun(FIRST_FAILED_PAUSE_S, LONGEST_FAILED_PAUSE_S, now_s)

    def finish_s(self, now_s: float, row_s: float) -> float:
        """Return when a request given now should be answered here; `NEVER_S` where that is not known."""
        if self.is_self or now_s < self.shunned_until_s or now_s - self.told_s > BELIEVED_S:
            return NEVER_S
        return now_s + self.travel_s + self.wait_s + self.since_told_rows * row_s

    def _shun(self, first_s: float, longest_s: float, now_s: float) -> None:
        # Those that were under way together are one broken promise.
        if now_s >= self.shunned_until_s:
            self.shunned_until_s = now_s + min(first_s * 2.0 ** min(self.failures, 16), longest_s)
            self.failures += 1


def choose(
    siblings: Sequence[Sibling], rows: int, *, due_s: float, now_s: float, row_s: float, most_rows: int
) -> Sibling | None:
    """Return the sibling that promises to finish soonest, and before ``due_s``; None where there is none.

    Args:
        siblings: all that are known.
        rows: of the request.
        due_s: when its answer should be here.
        now_s: the time.
        row_s: what each row given since a promise adds to it.
        most_rows: that one sibling may have of us at a time, unless one request alone is larger. One that failed
            has one request at a time.
    """
    best: Sibling | None = None
    best_s = due_s
    for sibling in siblings:
        if sibling.given_rows and (sibling.on_trial or sibling.given_rows + rows > most_rows):
            continue
        finish_s = sibling.finish_s(now_s, row_s) + (rows - 1) * row_s
        if finish_s < best_s:
            best, best_s = sibling, finish_s
    return best


def stalest(siblings: Sequence[Sibling], count: int, now_s: float) -> list[Sibling]:
    """Return the siblings to ask next: those that have been silent longest, but none that is left alone."""
    asked = [each for each in siblings if not each.is_self and now_s >= each.shunned_until_s]
    return sorted(asked, key=_asked_s)[:count]


def _asked_s(sibling: Sibling) -> float:
    return sibling.asked_s
