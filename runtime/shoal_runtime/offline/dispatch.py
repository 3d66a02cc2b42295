"""Which rows are computed next, and what of a batch that failed is tried again. Pure.

A batch that fails is halved until the row to blame is alone. Where the process that computes ends, the rows that it had
are tried one by one, and what comes of them is thrown away: an end then has one row to blame, a model is loaded only
once for each such row, and all others are computed in the batches in which they would have been, to the same bits. A
batch that ends the process though each of its rows does not is halved: there is not memory enough.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from shoal_runtime.offline.windows import halves
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.engine import OUT_OF_MEMORY


@dataclass(frozen=True, slots=True)
class Work:
    """Rows of one window that travel together; ``tried``: none of them alone ends the process, but together they did.

    What was tried runs alone, so that another end is its own.
    """

    window: int
    rows: Array
    tried: bool = False

    def halved(self) -> list["Work"]:
        """Return the rows in two."""
        return [Work(self.window, rows, self.tried) for rows in halves(self.rows)]


@dataclass(slots=True)
class _Suspect:
    """A batch whose rows are tried one by one."""

    work: Work
    left: int
    bad: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Running:
    """What an engine has; of a row that is tried alone, the batch that it is of."""

    engine: int
    work: Work
    suspect: _Suspect | None = None


class Dispatch:
    """What waits and what runs, on engines known by their numbers.

    Args:
        limit: rows of a batch; where memory ran out, fewer.
        in_flight: batches that one engine has at once.
    """

    def __init__(self, limit: int, in_flight: int) -> None:
        self.limit = limit
        self._in_flight = in_flight
        self._waiting: deque[Work] = deque()
        self._trials: deque[tuple[_Suspect, Work]] = deque()
        self._running: dict[int, _Running] = {}
        self._numbers = 0

    @property
    def idle(self) -> bool:
        """Return whether nothing waits and nothing runs."""
        return not (self._waiting or self._trials or self._running)

    def offer(self, works: Iterable[Work]) -> None:
        """Take batches that are to be computed."""
        self._waiting.extend(works)

    def take(self, engine: int) -> tuple[int, Work] | None:
        """Return what an engine computes next, with its number, or None: it has enough."""
        mine = [each for each in self._running.values() if each.engine == engine]
        alone = bool(self._trials or (self._waiting and self._waiting[0].tried))
        if len(mine) >= self._in_flight or any(each.suspect or each.work.tried for each in mine) or (alone and mine):
            return None
        if self._trials:
            suspect, work = self._trials.popleft()
            return self._begin(_Running(engine, work, suspect))
        return self._begin(_Running(engine, self._waiting.popleft())) if self._waiting else None

    def done(self, number: int) -> Work | None:
        """Return what was computed; None: it was only tried."""
        ran = self._running.pop(number)
        if ran.suspect is not None:
            self._tried(ran.suspect)
            return None
        return ran.work

    def failed(self, number: int, code: str) -> Work | None:
        """Return the row to blame for a batch that failed; None: its halves are tried."""
        work = self.done(number)
        if work is None or len(work.rows) == 1:
            return work
        if code == OUT_OF_MEMORY:
            self.limit = min(self.limit, max(1, len(work.rows) // 2))
        self._waiting.extendleft(reversed(work.halved()))
        return None

    def ended(self, engine: int) -> Work | None:
        """Return the row to blame for the end of an engine; None: it had none, or its rows are tried one by one."""
        had = [number for number, each in self._running.items() if each.engine == engine]
        ran = [self._running.pop(number) for number in had]
        if len(ran) == 1 and len(ran[0].work.rows) == 1:
            if (suspect := ran[0].suspect) is not None:
                suspect.bad.append(int(ran[0].work.rows[0]))
                self._tried(suspect)
            return ran[0].work
        for each in ran:
            self._suspect(each.work)
        return None

    def _suspect(self, work: Work) -> None:
        if work.tried:
            self._waiting.extendleft(reversed(work.halved()))
            return
        suspect = _Suspect(work, len(work.rows))
        self._trials.extend((suspect, Work(work.window, work.rows[at : at + 1])) for at in range(len(work.rows)))

    def _tried(self, suspect: _Suspect) -> None:
        """Have the rest of a batch computed, when each of its rows was tried."""
        suspect.left -= 1
        good = suspect.work.rows[~np.isin(suspect.work.rows, suspect.bad)]
        if not suspect.left and len(good):
            self._waiting.appendleft(Work(suspect.work.window, good, tried=True))

    def _begin(self, running: _Running) -> tuple[int, Work]:
        self._numbers += 1
        self._running[self._numbers] = running
        return self._numbers, running.work
