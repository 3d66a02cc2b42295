"""Which rows are computed next, and what of a batch that failed is tried again. Pure.

A batch that fails is halved until the row to blame is alone. Where the process that computed ends, all that it had is
suspect, and goes on alone, so that the next end names its batch, and at last its row.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from shoal_runtime.offline.windows import halves
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.engine import OUT_OF_MEMORY


@dataclass(frozen=True, slots=True)
class Work:
    """Rows of one window that travel together."""

    window: int
    rows: Array

    def halved(self) -> list["Work"]:
        """Return the rows in two."""
        return [Work(self.window, rows) for rows in halves(self.rows)]


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
        self._suspects: deque[Work] = deque()
        self._running: dict[int, tuple[int, Work]] = {}
        self._alone: set[int] = set()
        self._numbers = 0

    @property
    def idle(self) -> bool:
        """Return whether nothing waits and nothing runs."""
        return not (self._waiting or self._suspects or self._running)

    @property
    def hungry(self) -> bool:
        """Return whether more rows would be of use."""
        return len(self._waiting) < self._in_flight and not self._suspects

    def offer(self, works: Iterable[Work]) -> None:
        """Take batches that are to be computed."""
        self._waiting.extend(works)

    def take(self, engine: int) -> tuple[int, Work] | None:
        """Return what an engine computes next, with its number, or None: it has enough."""
        running = sum(owner == engine for owner, _ in self._running.values())
        if engine in self._alone or running >= self._in_flight:
            return None
        if self._suspects:
            if running:
                return None
            self._alone.add(engine)
            return self._begin(engine, self._suspects.popleft())
        return self._begin(engine, self._waiting.popleft()) if self._waiting else None

    def done(self, number: int) -> Work:
        """Return what was computed."""
        engine, work = self._running.pop(number)
        self._alone.discard(engine)
        return work

    def failed(self, number: int, code: str) -> Work | None:
        """Return the row to blame for a batch that failed; None: its halves are tried."""
        work = self.done(number)
        if len(work.rows) == 1:
            return work
        if code == OUT_OF_MEMORY:
            self.limit = min(self.limit, max(1, len(work.rows) // 2))
        self._waiting.extendleft(reversed(work.halved()))
        return None

    def ended(self, engine: int) -> Work | None:
        """Return the row to blame for the end of an engine; None: it had none, or what it had goes on alone."""
        had = [number for number, (owner, _) in self._running.items() if owner == engine]
        works = [self._running.pop(number)[1] for number in had]
        self._alone.discard(engine)
        if len(works) == 1:
            if len(works[0].rows) == 1:
                return works[0]
            works = works[0].halved()
        self._suspects.extendleft(reversed(works))
        return None

    def _begin(self, engine: int, work: Work) -> tuple[int, Work]:
        self._numbers += 1
        self._running[self._numbers] = engine, work
        return self._numbers, work
