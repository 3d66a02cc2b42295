"""Load of the peers, and selection of the peer for a late request.

A replica reports the expected response time of a request that arrives now (its promise).

A promise is outdated when it is read, several replicas may use it concurrently, and it may be wrong. So it is valid for
a short time only, rows forwarded since are added to it, and the number of concurrently forwarded rows is limited. A
peer that misses its promise is skipped, each time for twice as long. A failing peer is fast, and promises to be: errors
count too, unless requests fail here alike, and a peer that failed gets one request at a time until it has answered one.
Where all replicas are full all promises are late, and no request is forwarded.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import isfinite
from typing import Final

NEVER_S: Final = float("inf")
BELIEVED_S: Final = 2.5
"""Validity of a promise: several poll intervals of a small idle service. A rejection ends it earlier."""
LONGEST_WAIT_S: Final = 3600.0
"""A longer wait is ignored as malformed."""
FIRST_PAUSE_S: Final = 0.02
"""Pause after a first rejection, about the time of a small batch. The load in the rejection also counts."""
LONGEST_PAUSE_S: Final = 2.0
FIRST_LATE_PAUSE_S: Final = 0.05
FIRST_FAILED_PAUSE_S: Final = 0.5
"""Pause after a missing load report, a broken connection or response, or failures in a row."""
LONGEST_FAILED_PAUSE_S: Final = 5.0
LEAST_FAILURES: Final = 0.1
"""Least assumed share of failing requests: any model raises now and then."""
CHANCE: Final = 0.05
"""Failures in a row that are less probable than this, at the share that fails here, are the peer's."""
_TRAVEL_WEIGHT: Final = 0.2
"""Weight of the newest round trip in the moving average."""


class Ended(StrEnum):
    """The outcome of a forwarded request: the label of the metric."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """The peer would have been late too; the model did not run."""
    ERROR = "error"
    """The peer rejected the request, or its model failed for some rows."""
    FAILED = "failed"
    """The peer's model failed as a whole: for this request, or for every one."""
    BROKEN = "broken"
    """The response is not a valid response of a replica to this request."""
    LATE = "late"
    """No response by the deadline."""
    LOST = "lost"
    """The connection broke."""
    CANCELLED = "cancelled"
    """The client has gone."""


class Peer:
    """A peer: its promise, the rows forwarded since, and whether it kept its promises."""

    __slots__ = ("asked_s", "errors", "failures", "given_rows", "is_self", "on_trial", "shunned_until_s",
                 "since_told_rows", "told_s", "travel_s", "wait_s")  # fmt: skip

    def __init__(self) -> None:
        self.wait_s = NEVER_S
        """Expected response time of a one-row request that arrives there now."""
        self.told_s = -NEVER_S
        self.asked_s = -NEVER_S
        """When its load was last requested or received."""
        self.travel_s = 0.0
        """Mean round trip."""
        self.given_rows = 0
        """Rows that are there now."""
        self.since_told_rows = 0
        """Rows forwarded since the last promise."""
        self.failures = 0
        """Broken promises in a row."""
        self.errors = 0
        """Requests in a row that failed as a whole."""
        self.on_trial = False
        """Whether the peer failed and has not responded since."""
        self.shunned_until_s = -NEVER_S
        self.is_self = False
        """Whether the address belongs to this replica itself."""

    def promised(self, wait_s: float | None, now_s: float, travel_s: float | None = None) -> None:
        """Record a promise; None and values out of range are none."""
        sensible = wait_s is not None and isfinite(wait_s) and 0 <= wait_s <= LONGEST_WAIT_S
        self.wait_s = wait_s if wait_s is not None and sensible else NEVER_S
        self.told_s = self.asked_s = now_s
        self.since_told_rows = 0
        if travel_s is not None:
            # The first round trip starts the moving average.
            weight = _TRAVEL_WEIGHT if self.travel_s else 1.0
            self.travel_s += weight * (travel_s - self.travel_s)

    def silent(self, now_s: float) -> None:
        """Record that it did not report its load."""
        self.wait_s = NEVER_S
        self.asked_s = now_s
        self._shun(FIRST_FAILED_PAUSE_S, LONGEST_FAILED_PAUSE_S, now_s)

    def given(self, rows: int) -> None:
        """Record rows that were forwarded to it."""
        self.given_rows += rows
        self.since_told_rows += rows

    def ended(self, rows: int, end: Ended, now_s: float, own_failures: float = 0.0) -> None:
        """Record their outcome; ``own_failures`` is the share of requests that fail at this replica, 0 to 1."""
        self.given_rows -= rows
        if end is Ended.REFUSED:
            self._shun(FIRST_PAUSE_S, LONGEST_PAUSE_S, now_s)
        elif end is Ended.LATE:
            self._shun(FIRST_LATE_PAUSE_S, LONGEST_PAUSE_S, now_s)
        elif end is Ended.LOST or end is Ended.BROKEN:
            self._failed(now_s)
        elif end is Ended.FAILED:
            # A model may fail for the request itself. So many failures in a row are no chance.
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
        """Return when a request forwarded now should be answered; `NEVER_S` where that is unknown."""
        if self.is_self or now_s < self.shunned_until_s or now_s - self.told_s > BELIEVED_S:
            return NEVER_S
        return now_s + self.travel_s + self.wait_s + self.since_told_rows * row_s

    def _shun(self, first_s: float, longest_s: float, now_s: float) -> None:
        # Requests that were forwarded together are one broken promise.
        if now_s >= self.shunned_until_s:
            self.shunned_until_s = now_s + min(first_s * 2.0 ** min(self.failures, 16), longest_s)
            self.failures += 1


def choose(
    peers: Sequence[Peer], rows: int, *, due_s: float, now_s: float, row_s: float, most_rows: int
) -> Peer | None:
    """Return the peer that promises to finish soonest, and before ``due_s``; None without such a peer.

    Args:
        peers: the known peers.
        rows: rows of the request.
        due_s: deadline of the response at this replica.
        now_s: monotonic time (s).
        row_s: additional time for each row that was forwarded after a promise.
        most_rows: maximum rows of this replica at one peer; a single larger request is allowed. A peer that failed gets
            one request at a time.
    """
    best: Peer | None = None
    best_s = due_s
    for peer in peers:
        # It holds enough rows of this replica, or one request on trial.
        if peer.given_rows and (peer.on_trial or peer.given_rows + rows > most_rows):
            continue
        # The promise is for one row; add the others.
        finish_s = peer.finish_s(now_s, row_s) + (rows - 1) * row_s
        if finish_s < best_s:
            best, best_s = peer, finish_s
    return best


def stalest(peers: Sequence[Peer], count: int, now_s: float) -> list[Peer]:
    """Return the peers to poll next: the least recently polled, without skipped ones."""
    asked = [each for each in peers if not each.is_self and now_s >= each.shunned_until_s]
    return sorted(asked, key=lambda each: each.asked_s)[:count]
