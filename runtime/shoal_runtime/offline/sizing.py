"""How many rows a forward takes best: more at a time, as long as that is quicker. Pure."""

from collections.abc import Mapping
from typing import Final

BUDGET_S: Final = 1.5
"""For all trials together."""
LARGEST: Final = 1024
SURE: Final = 16
"""Of smaller ones a machine that is busy with something else says too little."""
_GAIN: Final = 1.03
_WORSE: Final = 0.85


def next_trial(seconds: Mapping[int, float | None], most: int) -> int | None:
    """Return the number of rows to try next, or None: enough is known.

    Args:
        seconds: what each number of rows took; None of one that failed.
        most: rows that there are to try with, or that the model takes.
    """
    if not seconds:
        return 1
    last = max(seconds)
    if last * 2 > min(most, LARGEST) or seconds[last] is None:
        return None
    spent_s = sum(2 * each for each in seconds.values() if each is not None)
    slower = last >= SURE and _rate(last, seconds) < _WORSE * max(_rate(rows, seconds) for rows in seconds)
    # It takes at most twice as long as half of it did, and runs twice at most.
    return None if slower or spent_s + 4 * (seconds[last] or 0) > BUDGET_S else last * 2


def best_size(seconds: Mapping[int, float | None], most: int) -> int:
    """Return the smallest number of rows that is about as quick, for each of them, as any.

    Where the time was up while more rows were still quicker, it is more of them than were tried.
    """
    known = sorted(rows for rows, each in seconds.items() if each is not None)
    if not known:
        return 1
    best = max(_rate(rows, seconds) for rows in known)
    found = next(rows for rows in known if _rate(rows, seconds) * _GAIN >= best)
    return max(found, min(SURE, most)) if 1 < found == max(seconds) else found


def expected_s(rows: int, seconds: Mapping[int, float | None]) -> float:
    """Return what so many rows take at the best rate seen; what takes longer may be warm when it is tried again."""
    return rows / best if (best := max((_rate(each, seconds) for each in seconds), default=0)) else 0.0


def _rate(rows: int, seconds: Mapping[int, float | None]) -> float:
    taken = seconds[rows]
    return rows / max(taken, 1e-9) if taken is not None else 0.0
