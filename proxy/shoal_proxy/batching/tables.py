"""One latency table per shape of input, since a longer row takes longer, and the most rows that its memory held.

A batch that runs out of memory halves the limit of its shape. It heals: after so many full batches that fitted, twice
as many rows are tried, and twice as many batches must fit before the next try each time that one fails. A single row
that does not fit says nothing of the limit; if halving a batch has led to it, the limit is what it was before.
"""

from collections import OrderedDict

from shoal_proxy.batching.latency import LatencyTable
from shoal_proxy.batching.pending import BatchKey

Shapes = tuple[tuple[str, tuple[int, ...]], ...]

_MAX_SHAPES = 64
_MAX_CAPS = 1024
PROBE_AFTER = 32
"""Full batches that must fit before a larger one is tried."""
_MAX_PROBE_AFTER = 1024


class Cap:
    """The ``rows`` that a batch of one shape may have: with more, the device ran out of memory."""

    __slots__ = ("fitted", "probe_after", "probed", "rows")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.probe_after = PROBE_AFTER
        self.probed = False
        """Whether it was raised since the last failure."""
        self.fitted = 0
        """Full batches since it changed."""

    def lower(self, rows: int) -> None:
        """Fall to ``rows``, and be slower to rise again if it had risen too soon."""
        self.rows = rows
        self.fitted = 0
        if self.probed:
            self.probe_after = min(2 * self.probe_after, _MAX_PROBE_AFTER)
            self.probed = False

    def fits(self, most: int) -> bool:
        """Count a full batch that fitted; return whether the limit has proved to be none."""
        self.fitted += 1
        if self.fitted < self.probe_after:
            return False
        if self.rows >= most:
            return True
        self.rows = min(2 * self.rows, most)
        self.fitted = 0
        self.probed = True
        return False


class Tables:
    """The tables of one model; of many shapes the ones used last."""

    def __init__(self, max_rows: int, allowed_sizes: tuple[int, ...] = ()) -> None:
        self._max_rows = max_rows
        self._allowed_sizes = allowed_sizes
        self._presets: tuple[tuple[int, float], ...] = ()
        self._tables: OrderedDict[Shapes, LatencyTable] = OrderedDict()
        self.caps: dict[Shapes, Cap] = {}

    def __getitem__(self, key: BatchKey) -> LatencyTable:
        table = self._tables.get(key.shapes)
        if table is None:
            table = self._tables[key.shapes] = LatencyTable(self._max_rows, self._allowed_sizes)
            table.preset(self._presets)
            if len(self._tables) > _MAX_SHAPES:
                self._tables.popitem(last=False)
        elif len(self._tables) > 1:
            self._tables.move_to_end(key.shapes)
        return table

    @property
    def last_shapes(self) -> Shapes | None:
        """Return the shapes of the table used last; None before the first."""
        return next(reversed(self._tables), None)

    def preset(self, seconds: tuple[tuple[int, float], ...]) -> None:
        """Begin every table with what the runtime measured when it warmed up: rows and seconds."""
        self._presets = seconds

    def max_rows(self, key: BatchKey) -> int:
        """Return how many rows a batch of ``key`` may have."""
        cap = self.caps.get(key.shapes) if self.caps else None
        return self._max_rows if cap is None else min(cap.rows, self._max_rows)

    @property
    def least_max_rows(self) -> int:
        """Return the least that any shape may have."""
        return min([self._max_rows, *[cap.rows for cap in self.caps.values()]])

    @property
    def capped_rows(self) -> int | None:
        """Return the least that memory allows some shape; None where it holds all batches."""
        return self.least_max_rows if self.least_max_rows < self._max_rows else None

    def ran_out_of_memory(self, key: BatchKey, rows: int) -> int:
        """Remember that ``rows``, more than one, were too many, and return how many may be tried."""
        most = self.max_rows(key)
        if rows < 2:
            return most
        most = min(rows // 2, most)
        if (cap := self.caps.get(key.shapes)) is None:
            cap = self.caps[key.shapes] = Cap(most)
            if len(self.caps) > _MAX_CAPS:
                del self.caps[next(iter(self.caps))]
        cap.lower(most)
        return most

    def fitted(self, key: BatchKey, rows: int) -> None:
        """Learn from a batch that succeeded."""
        cap = self.caps.get(key.shapes)
        if cap is not None and rows >= min(cap.rows, self._max_rows) and cap.fits(self._max_rows):
            del self.caps[key.shapes]

    def forgive(self, key: BatchKey, rows: int) -> None:
        """Allow ``rows`` again, as before a failure that a single row was to blame for."""
        cap = self.caps.get(key.shapes)
        if cap is not None and cap.rows < rows:
            cap.rows, cap.fitted = rows, 0

    def all(self) -> dict[Shapes, LatencyTable]:
        """Return the tables, the one used last at the end."""
        return dict(self._tables)
