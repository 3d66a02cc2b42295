"""Load of the peers, and selection of the peer for a late request.

A replica reports the expected wait of a request that arrives now. The report is old when it is read, several replicas
may act on it at once, and it may be wrong. So a report counts for a short time only, and the wait for rows forwarded
since is added. The rows at one peer are bounded. A peer that exceeds its expected wait is skipped for a while, each
time twice as long. A failing peer responds fast and reports short waits, so errors count too, unless requests also fail
on this replica. A peer that failed gets one request at a time until one succeeds. If all replicas are full, all
expected waits are too long, and no request is forwarded.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import isfinite
from typing import Final

NEVER_S: Final = float("inf")
MAX_REPORT_AGE_S: Final = 2.5
"""How long a report counts: a few polls of a small idle service; a rejection corrects it sooner."""
MAX_WAIT_S: Final = 3600.0
"""A longer wait is ignored as malformed."""
FIRST_PAUSE_S: Final = 0.02
"""Pause after a first rejection: about a small batch; the load reported with it counts besides."""
MAX_PAUSE_S: Final = 2.0
FIRST_LATE_PAUSE_S: Final = 0.05
FIRST_FAILED_PAUSE_S: Final = 0.5
"""Pause after a missing load report, a broken connection or response, or failures in a row."""
MAX_FAILED_PAUSE_S: Final = 5.0
MIN_FAILURES: Final = 0.1
"""Least assumed share of failing requests: any model raises now and then."""
CHANCE: Final = 0.05
"""Failures in a row that are less probable than this, at the share that fails here, are the peer's."""
_TRAVEL_WEIGHT: Final = 0.2
"""Weight of the newest round trip in the moving average."""


class ForwardingOutcome(StrEnum):
    """The outcome of a forwarded request, as the label of a metric."""

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
    """The reported load of a peer, the rows forwarded to it, and its failures."""

    __slots__ = (
        "errors", "failures", "forwarded_rows", "is_self", "on_trial", "polled_s", "reported_s", "rows_since_report",
        "skipped_until_s", "travel_s", "wait_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.wait_s = NEVER_S
        """Time that a request of one row would take at the peer if it arrived now."""
        self.reported_s = -NEVER_S
        self.polled_s = -NEVER_S
        """Time at which the peer's load was last requested or received."""
        self.travel_s = 0.0
        """Mean round trip."""
        self.forwarded_rows = 0
        """Forwarded rows that are at the peer now."""
        self.rows_since_report = 0
        """Rows forwarded since the last report."""
        self.failures = 0
        """Rejections, missed deadlines and errors in a row."""
        self.errors = 0
        """Requests in a row that failed as a whole."""
        self.on_trial = False
        """Whether it has failed and not answered since."""
        self.skipped_until_s = -NEVER_S
        self.is_self = False
        """Whether the address belongs to this replica itself."""

    def record_expected_wait(self, wait_s: float | None, now_s: float, travel_s: float | None = None) -> None:
        """Record the expected wait that the peer reported.

        Args:
            wait_s: the wait (s); None, infinite or out of range counts as unknown.
            now_s: monotonic time (s).
            travel_s: round trip time (s) to the peer; None if not measured.
        """
        sensible = wait_s is not None and isfinite(wait_s) and 0 <= wait_s <= MAX_WAIT_S
        self.wait_s = wait_s if wait_s is not None and sensible else NEVER_S
        self.reported_s = self.polled_s = now_s
        self.rows_since_report = 0
        if travel_s is not None:
            # The first round trip starts the moving average.
            weight = _TRAVEL_WEIGHT if self.travel_s else 1.0
            self.travel_s += weight * (travel_s - self.travel_s)

    def record_no_report(self, now_s: float) -> None:
        """Record that the peer did not report its load."""
        self.wait_s = NEVER_S
        self.polled_s = now_s
        self._skip(FIRST_FAILED_PAUSE_S, MAX_FAILED_PAUSE_S, now_s)

    def record_forwarded(self, rows: int) -> None:
        """Record rows that were forwarded to the peer."""
        self.forwarded_rows += rows
        self.rows_since_report += rows

    def record_outcome(self, rows: int, end: ForwardingOutcome, now_s: float, own_failures: float = 0.0) -> None:
        """Record the outcome of forwarded ``rows``.

        ``own_failures`` is the share of requests that fail on this replica, 0 to 1.
        """
        self.forwarded_rows -= rows
        if end is ForwardingOutcome.REFUSED:
            self._skip(FIRST_PAUSE_S, MAX_PAUSE_S, now_s)
        elif end is ForwardingOutcome.LATE:
            self._skip(FIRST_LATE_PAUSE_S, MAX_PAUSE_S, now_s)
        elif end is ForwardingOutcome.LOST or end is ForwardingOutcome.BROKEN:
            self._failed(now_s)
        elif end is ForwardingOutcome.FAILED:
            # A model may fail for the request itself. So many failures in a row are no chance.
            self.errors += 1
            if max(MIN_FAILURES, own_failures) ** self.errors < CHANCE:
                self._failed(now_s)
        elif end is ForwardingOutcome.ANSWERED:
            self.failures = self.errors = 0
            self.on_trial = False

    def _failed(self, now_s: float) -> None:
        self.on_trial = True
        self._skip(FIRST_FAILED_PAUSE_S, MAX_FAILED_PAUSE_S, now_s)

    def finish_s(self, now_s: float, row_s: float) -> float:
        """Return when the peer is expected to respond; `NEVER_S` if unknown."""
        if self.is_self or now_s < self.skipped_until_s or now_s - self.reported_s > MAX_REPORT_AGE_S:
            return NEVER_S
        return now_s + self.travel_s + self.wait_s + self.rows_since_report * row_s

    def _skip(self, first_s: float, longest_s: float, now_s: float) -> None:
        # Requests that were forwarded together are one failure.
        if now_s >= self.skipped_until_s:
            self.skipped_until_s = now_s + min(first_s * 2.0 ** min(self.failures, 16), longest_s)
            self.failures += 1


def choose_peer(
    peers: Sequence[Peer], rows: int, *, soft_deadline_s: float, now_s: float, row_s: float, most_rows: int
) -> Peer | None:
    """Return the peer with the earliest expected response.

    Returns None if no peer is expected to respond before ``soft_deadline_s``.

    Args:
        peers: the known peers.
        rows: rows of the request.
        soft_deadline_s: time by which this replica needs the response.
        now_s: monotonic time (s).
        row_s: time that each row forwarded since a report adds to the wait.
        most_rows: maximum of unfinished rows forwarded to one peer. A peer without unfinished rows accepts a request of
            any size. A peer that failed gets one request at a time.
    """
    best: Peer | None = None
    best_s = soft_deadline_s
    for peer in peers:
        # It holds enough rows of this replica, or one request on trial.
        if peer.forwarded_rows and (peer.on_trial or peer.forwarded_rows + rows > most_rows):
            continue
        # The report is for one row; add the others.
        finish_s = peer.finish_s(now_s, row_s) + (rows - 1) * row_s
        if finish_s < best_s:
            best, best_s = peer, finish_s
    return best


def least_recently_polled(peers: Sequence[Peer], count: int, now_s: float) -> list[Peer]:
    """Return the ``count`` peers to poll next: those polled longest ago.

    Skipped peers and this replica itself are excluded.
    """
    asked = [each for each in peers if not each.is_self and now_s >= each.skipped_until_s]
    return sorted(asked, key=lambda each: each.polled_s)[:count]
