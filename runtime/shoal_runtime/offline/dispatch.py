"""Batches of a job: size, division of rows, order, and retries. Pure.

The rows of a window are sorted by shape and length, so a batch holds rows of about one length, with little padding.

A failed batch is halved until only the failing row is left. When an engine process ends, each row of its batches is
tried in a batch of one row, and the result is discarded: if the process ends again, that row is the cause. The model is
loaded once for each such row, and the other rows are computed in their original batches, with bit-identical results. If
a batch ends the process but none of its rows does, memory is too small for the batch, and it is halved.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.engine_messages import OUT_OF_MEMORY

BUDGET_S: Final = 1.5
"""For all trials of batch sizes."""
LARGEST: Final = 1024
SURE: Final = 16
"""Trials of fewer rows are too short to compare on a busy machine."""
_GAIN: Final = 1.03
"""A larger batch must be faster by this factor."""
_WORSE: Final = 0.85
"""Below this part of the best rate, no larger batch is tried."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """A batch: rows of one window that are computed together."""

    window: int
    rows: Array
    tried: bool = False
    """No row ends the process alone, but the batch did. It runs alone, so that another end is its own."""

    def halved(self) -> list["WorkUnit"]:
        """Split the batch into two batches."""
        middle = (len(self.rows) + 1) // 2
        return [WorkUnit(self.window, rows, self.tried) for rows in (self.rows[:middle], self.rows[middle:])]


@dataclass(slots=True)
class _Suspect:
    """Batch during which an engine process ended.

    Each of its rows is tried in a batch of one row, to find the row that ends the process.
    """

    work: WorkUnit
    left: int
    bad: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Running:
    """A batch that an engine computes.

    For the trial of one row, ``suspect`` is the batch that the row belongs to.
    """

    engine: int
    work: WorkUnit
    suspect: _Suspect | None = None


class BatchDispatcher:
    """Queue of batches, and the batches that each engine computes.

    Args:
        limit: maximum rows of a batch; lowered when memory runs out.
        in_flight: maximum batches sent to one engine and not finished.
    """

    def __init__(self, limit: int, in_flight: int) -> None:
        self.limit = limit
        self._in_flight = in_flight
        self._waiting: deque[WorkUnit] = deque()
        self._trials: deque[tuple[_Suspect, WorkUnit]] = deque()
        self._running: dict[int, _Running] = {}
        self._numbers = 0

    @property
    def idle(self) -> bool:
        """Return whether no batch is queued or running."""
        return not (self._waiting or self._trials or self._running)

    def enqueue(self, works: Iterable[WorkUnit]) -> None:
        """Add batches to the queue."""
        self._waiting.extend(works)

    def next_batch(self, engine: int) -> tuple[int, WorkUnit] | None:
        """Return the number and the batch to send to an engine next.

        None if no batch is queued, or the engine must finish other batches first.
        """
        mine = [each for each in self._running.values() if each.engine == engine]
        # Trials run alone, so that the end of a process has one row to blame.
        alone = bool(self._trials or (self._waiting and self._waiting[0].tried))
        if len(mine) >= self._in_flight or any(each.suspect or each.work.tried for each in mine) or (alone and mine):
            return None
        if self._trials:
            suspect, work = self._trials.popleft()
            return self._begin(_Running(engine, work, suspect))
        return self._begin(_Running(engine, self._waiting.popleft())) if self._waiting else None

    def complete(self, number: int) -> WorkUnit | None:
        """Remove a finished batch.

        Returns: The batch; None for the trial of one row, whose result is discarded.
        """
        ran = self._running.pop(number)
        if ran.suspect is not None:
            self._tried(ran.suspect)
            return None
        return ran.work

    def fail(self, number: int, code: str) -> WorkUnit | None:
        """Handle a failed batch.

        Returns: A batch of one row that has failed. None for a larger batch, whose halves are queued again.
        """
        work = self.complete(number)
        if work is None or len(work.rows) == 1:
            return work
        # Later batches are cut to the size that may fit.
        if code == OUT_OF_MEMORY:
            self.limit = min(self.limit, max(1, len(work.rows) // 2))
        self._waiting.extendleft(reversed(work.halved()))
        return None

    def engine_ended(self, engine: int) -> WorkUnit | None:
        """Handle the end of an engine's process.

        Returns: The batch of one row that ended the process. None if the engine had no batch, or if its batches will be
        tried again in smaller parts.
        """
        had = [number for number, each in self._running.items() if each.engine == engine]
        ran = [self._running.pop(number) for number in had]
        # One row was running, so it ended the process.
        if len(ran) == 1 and len(ran[0].work.rows) == 1:
            if (suspect := ran[0].suspect) is not None:
                suspect.bad.append(int(ran[0].work.rows[0]))
                self._tried(suspect)
            return ran[0].work
        for work in (each.work for each in ran):
            if work.tried:
                self._waiting.extendleft(reversed(work.halved()))
            else:
                suspect = _Suspect(work, len(work.rows))
                singles = (work.rows[at : at + 1] for at in range(len(work.rows)))
                self._trials.extend((suspect, WorkUnit(work.window, row)) for row in singles)
        return None

    def _tried(self, suspect: _Suspect) -> None:
        """Count one tried row of a batch.

        After the last row, queue a batch of the rows that did not end the process.
        """
        suspect.left -= 1
        good = suspect.work.rows[~np.isin(suspect.work.rows, suspect.bad)]
        if not suspect.left and len(good):
            self._waiting.appendleft(WorkUnit(suspect.work.window, good, tried=True))

    def _begin(self, running: _Running) -> tuple[int, WorkUnit]:
        self._numbers += 1
        self._running[self._numbers] = running
        return self._numbers, running.work


def cut_batches(keys: Sequence[Hashable], sizes: Array, rows: Array, limit: int) -> list[Array]:
    """Divide rows into batches of at most ``limit`` rows and one key each.

    Args:
        keys: batch key of each row of the window.
        sizes: length of each row of the window.
        rows: row numbers to batch.
        limit: maximum rows of a batch.
    """
    # A stable sort keeps rows of one length in their order, so batches are reproducible.
    order = rows[np.argsort(sizes[rows], kind="stable")]
    groups: dict[Hashable, list[int]] = {}
    for row in order.tolist():
        groups.setdefault(keys[row], []).append(row)
    return [np.array(group[at : at + limit]) for group in groups.values() for at in range(0, len(group), limit)]


def next_trial(seconds: Mapping[int, float | None], most: int) -> int | None:
    """Return the batch size to measure next in the search for the best size.

    Args:
        seconds: measured time for each number of rows; None if the batch failed.
        most: maximum number of rows.

    Returns: A number of rows; None to stop the search.
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
    """Return the smallest batch size whose throughput is close to the best.

    If the last trial was still the fastest, return at least `SURE` rows, because the search had to stop early.
    """
    tried = sorted(rows for rows, each in seconds.items() if each is not None)
    if not tried:
        return 1
    best = max(_rate(rows, seconds) for rows in tried)
    found = next(rows for rows in tried if _rate(rows, seconds) * _GAIN >= best)
    return max(found, min(SURE, most)) if 1 < found == max(seconds) else found


def expected_s(rows: int, seconds: Mapping[int, float | None]) -> float:
    """Estimate the time (s) of a batch from the best throughput so far.

    0 before the first measurement.
    """
    return rows / best if (best := max((_rate(each, seconds) for each in seconds), default=0)) else 0.0


def _rate(rows: int, seconds: Mapping[int, float | None]) -> float:
    taken = seconds[rows]
    return rows / max(taken, 1e-9) if taken is not None else 0.0
