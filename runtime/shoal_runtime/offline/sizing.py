"""Search for the batch size with the highest throughput, by doubling the number of rows. Pure."""

from collections.abc import Mapping
from typing import Final

BUDGET_S: Final = 1.5
"""For all trials."""
LARGEST: Final = 1024
SURE: Final = 16
"""Trials of fewer rows are too short to compare on a busy machine."""
_GAIN: Final = 1.03
"""A larger batch must be faster by this factor."""
_WORSE: Final = 0.85
"""Below this part of the best rate, no larger batch is tried."""


def next_trial(seconds: Mapping[int, float | None], most: int) -> int | None:
    """Return the number of rows to try next; None to stop the search.

    Args:
        seconds: measured time for each number of rows; None if the batch failed.
        most: maximum number of rows.
    """
    if not seconds:
        return 1
    last = max(seconds)
    if last * 2 > min(most, LARGEST) or seconds[last] is None:
        return None
    # Each trial may have run twice.
    spent_s = sum(2 * each for each in seconds.values() if each is not None)
    slower = last >= SURE and _rate(last, seconds) < _WORSE * max(_rate(rows, seconds) for rows in seconds)
    # Twice the rows take at most twice as long, and run at most twice.
    return None if slower or spent_s + 4 * (seconds[last] or 0) > BUDGET_S else last * 2


def best_size(seconds: Mapping[int, float | None], most: int) -> int:
    """Return the smallest number of rows whose throughput is close to the best.

    If the last trial was still the fastest, return at least `SURE` rows, because the search had to stop early.
    """
    tried = sorted(rows for rows, each in seconds.items() if each is not None)
    if not tried:
        return 1
    best = max(_rate(rows, seconds) for rows in tried)
    found = next(rows for rows in tried if _rate(rows, seconds) * _GAIN >= best)
    return max(found, min(SURE, most)) if 1 < found == max(seconds) else found


def expected_s(rows: int, seconds: Mapping[int, float | None]) -> float:
    """Return the time of a batch at the best throughput so far; 0 without an earlier trial."""
    return rows / best if (best := max((_rate(each, seconds) for each in seconds), default=0)) else 0.0


def _rate(rows: int, seconds: Mapping[int, float | None]) -> float:
    taken = seconds[rows]
    return rows / max(taken, 1e-9) if taken is not None else 0.0
