"""Choose among several addresses of a model by their expected wait. Pure: time is an argument.

Each response reports the expected wait of a request (`endpoint-load-metrics`). Of two addresses drawn at random, the
one with the shorter wait is chosen (power of two choices), so that clients with the same reports do not all choose
the same address. An address without a report ranks last. An address that rejects, fails or is unreachable is avoided,
with exponential backoff: its fast failures would otherwise attract every request.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Final

from shoal_schema.interfaces.headers import EXECUTED

REPORT_REQUEST: Final = ("endpoint-load-metrics-format", "TEXT")
"""The request header that asks for a load report."""
_REPORT: Final = "endpoint-load-metrics"
"""The response header with the report."""
_WAIT: Final = "expected_wait_seconds="
_MAX_REPORT_CHARS: Final = 1024
"""Characters of a report that are parsed."""
REPORT_EXPIRY_S: Final = 1.0
"""Age at which a report expires; the address then ranks as never used, for one request."""
MIN_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 30.0
"""Backoff of an address that is unreachable or fails repeatedly."""
MIN_REJECTED_PAUSE_S: Final = 0.05
MAX_REJECTED_PAUSE_S: Final = 2.0
"""Backoff of an address that rejects; it may have capacity again soon."""
FAILURES_IN_A_ROW: Final = 2
"""Failures that count against the server; a single one may be caused by the request."""
MAX_TRIES: Final = 3
"""Addresses tried for one request while none runs it; bounds the time if all are full."""
_UNKNOWN_S: Final = float("inf")
_REJECTS: Final = frozenset({429, 502, 503})
_SERVER_FAULTS: Final = frozenset({404, 405, 408, 415})
"""Statuses below 500 that indicate a wrong server rather than a wrong item."""


class AddressState:
    """State of one address: its last load report, and the requests sent since the report."""

    __slots__ = ("backoff_until_s", "errors", "failures", "in_flight", "reported_s", "sent", "wait_s")

    def __init__(self) -> None:
        self.wait_s = _UNKNOWN_S
        """Expected wait of the last report; infinity without a report."""
        self.reported_s = float("-inf")
        """Time of the last response."""
        self.sent = 0
        """Requests sent since then."""
        self.in_flight = 0
        """Requests without a response yet."""
        self.failures = 0
        """Consecutive backoffs."""
        self.errors = 0
        """Consecutive failed responses."""
        self.backoff_until_s = float("-inf")

    def record_response(self, status: int, headers: Mapping[str, str], now_s: float) -> None:
        """Update the state from a response: its load report, and a backoff after a rejection or failure."""
        wait_s = expected_wait_s(headers.get(_REPORT, ""))
        self.wait_s, self.reported_s, self.sent = _UNKNOWN_S if wait_s is None else wait_s, now_s, 0
        if status in _REJECTS and headers.get(EXECUTED) == "no":
            self._back_off(MIN_REJECTED_PAUSE_S, MAX_REJECTED_PAUSE_S, now_s)
        elif status in _REJECTS:
            self.record_failure(now_s)  # the request may have run, and is lost
        elif status >= 500 or status in _SERVER_FAULTS or (status != 200 and status < 400):
            self.errors += 1
            self.wait_s = _UNKNOWN_S  # a failing model is fast, so its report is too good
            if self.errors >= FAILURES_IN_A_ROW:
                self._back_off(MIN_PAUSE_S, MAX_PAUSE_S, now_s)
        else:
            # Also a client error: the server works.
            self.failures = self.errors = 0

    def record_failure(self, now_s: float) -> None:
        """Start a backoff: the address was unreachable or did not respond."""
        self._back_off(MIN_PAUSE_S, MAX_PAUSE_S, now_s)

    def score(self, now_s: float) -> tuple[float, float, int]:
        """Return a sort key, smaller is better: remaining backoff, expected wait, requests sent since the report."""
        if now_s - self.reported_s <= REPORT_EXPIRY_S:
            wait_s = self.wait_s * (1 + self.sent)
        else:
            # The report has expired: one request probes the address, the others avoid it meanwhile.
            wait_s = _UNKNOWN_S if self.in_flight else 0.0
        return max(0.0, self.backoff_until_s - now_s), wait_s, self.sent

    def _back_off(self, first_s: float, longest_s: float, now_s: float) -> None:
        # Concurrent failures count once.
        if now_s >= self.backoff_until_s:
            self.backoff_until_s = now_s + min(first_s * 2.0 ** min(self.failures, 16), longest_s)
            self.failures += 1


def choose(states: Sequence[AddressState], now_s: float, sample: Callable[[int, int], Sequence[int]]) -> int:
    """Return the index of the chosen address; ``sample(n, k)`` draws k of the first n numbers.

    Addresses in backoff are drawn only if there is no other.
    """
    return _drawn(states, open_addresses(states, now_s) or range(len(states)), now_s, sample)


def choose_other(
    states: Sequence[AddressState], tried: Sequence[int], now_s: float, sample: Callable[[int, int], Sequence[int]]
) -> int | None:
    """Return the index of another address for a request that did not run.

    None means to give up: all untried addresses are in backoff, or `MAX_TRIES` addresses were tried. ``tried`` are the
    indexes of the latter.
    """
    others = [number for number in open_addresses(states, now_s) if number not in tried]
    return _drawn(states, others, now_s, sample) if others and len(tried) < MAX_TRIES else None


def open_addresses(states: Sequence[AddressState], now_s: float) -> list[int]:
    """Return the indexes of the addresses that are not in backoff."""
    return [number for number, state in enumerate(states) if now_s >= state.backoff_until_s]


def not_run(method: str, status: int, headers: Mapping[str, str]) -> bool:
    """Return whether a response rejects the request before it ran, so that another address may serve it."""
    return status in _REJECTS and (method == "GET" or headers.get(EXECUTED) == "no")


def _drawn(
    states: Sequence[AddressState], numbers: Sequence[int], now_s: float, sample: Callable[[int, int], Sequence[int]]
) -> int:
    # Power of two choices.
    drawn = [numbers[index] for index in sample(len(numbers), min(2, len(numbers)))]
    return min(drawn, key=lambda number: states[number].score(now_s))


def expected_wait_s(report: str) -> float | None:
    """Return the expected wait in a text report; None if it is missing or malformed."""
    if not report.startswith("TEXT ") or len(report) > _MAX_REPORT_CHARS:
        return None
    _, found, rest = report.partition(_WAIT)
    try:
        wait_s = float(rest.partition(",")[0]) if found else -1.0
    except ValueError:
        return None
    return wait_s if isfinite(wait_s) and wait_s >= 0 else None
