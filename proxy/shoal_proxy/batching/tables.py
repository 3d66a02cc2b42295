"""The latency table and the memory limit of each input shape.

Longer rows take longer, so each shape has its own table. A batch that runs out of memory halves the row limit of its
shape. The limit recovers: after `PROBE_AFTER` full batches that fitted, twice as many rows are tried; each failed try
doubles the number of batches before the next try. A batch of a single row that does not fit proves nothing about the
limit. If that batch is the last of repeated halvings, the limit is restored.
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


class RowLimit:
    """The maximum rows of a batch of one shape, after memory was exhausted."""

    __slots__ = ("probe_after", "probed", "record_fit", "rows")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.probe_after = PROBE_AFTER
        self.probed = False
        """Whether it was raised since the last failure."""
        self.record_fit = 0
        """Full batches since the limit changed."""

    def lower(self, rows: int) -> None:
        """Lower the limit to ``rows`` after a batch ran out of memory.

        If the limit had been raised as a trial, the next trial comes after twice as many batches.
        """
        self.rows = rows
        self.record_fit = 0
        if self.probed:
            self.probe_after = min(2 * self.probe_after, _MAX_PROBE_AFTER)
            self.probed = False

    def fits(self, most: int) -> bool:
        """Count a full batch that fitted; return whether the limit is no longer needed."""
        self.record_fit += 1
        if self.record_fit < self.probe_after:
            return False
        if self.rows >= most:
            return True
        # Try twice as many rows.
        self.rows = min(2 * self.rows, most)
        self.record_fit = 0
        self.probed = True
        return False


class LatencyTables:
    """The latency tables and row limits of one model, by recent input shape."""

    def __init__(self, max_rows: int, allowed_sizes: tuple[int, ...] = ()) -> None:
        self._max_rows = max_rows
        self._allowed_sizes = allowed_sizes
        self._presets: tuple[tuple[int, float], ...] = ()
        self._tables: OrderedDict[Shapes, LatencyTable] = OrderedDict()
        self.caps: dict[Shapes, RowLimit] = {}

    def __getitem__(self, key: BatchKey) -> LatencyTable:
        table = self._tables.get(key.shapes)
        if table is None:
            table = self._tables[key.shapes] = LatencyTable(self._max_rows, self._allowed_sizes)
            table.preset(self._presets)
            if len(self._tables) > _MAX_SHAPES:
                self._tables.popitem(last=False)
        elif len(self._tables) > 1:
            # The shapes used least recently are dropped first.
            self._tables.move_to_end(key.shapes)
        return table

    @property
    def last_shapes(self) -> Shapes | None:
        """Return the shapes of the table used last; None before the first."""
        return next(reversed(self._tables), None)

    def preset(self, seconds: tuple[tuple[int, float], ...]) -> None:
        """Set the warm-up measurements (rows, seconds) that new tables start with."""
        self._presets = seconds

    def max_rows(self, key: BatchKey) -> int:
        """Return the maximum rows of a batch of ``key``."""
        cap = self.caps.get(key.shapes) if self.caps else None
        return self._max_rows if cap is None else min(cap.rows, self._max_rows)

    @property
    def least_max_rows(self) -> int:
        """Return the lowest row limit of all shapes."""
        return min([self._max_rows, *[cap.rows for cap in self.caps.values()]])

    @property
    def capped_rows(self) -> int | None:
        """Return the lowest row limit set by memory; None if all batches fit."""
        return self.least_max_rows if self.least_max_rows < self._max_rows else None

    def ran_out_of_memory(self, key: BatchKey, rows: int) -> int:
        """Lower the row limit after a batch of ``rows`` did not fit; return the limit."""
        most = self.max_rows(key)
        if rows < 2:  # a single row does not fit at any limit
            return most
        most = min(rows // 2, most)
        if (cap := self.caps.get(key.shapes)) is None:
            cap = self.caps[key.shapes] = RowLimit(most)
            if len(self.caps) > _MAX_CAPS:
                del self.caps[next(iter(self.caps))]
        cap.lower(most)
        return most

    def record_fit(self, key: BatchKey, rows: int) -> None:
        """Record that a batch of ``rows`` fitted into memory."""
        cap = self.caps.get(key.shapes)
        if cap is not None and rows >= min(cap.rows, self._max_rows) and cap.fits(self._max_rows):
            del self.caps[key.shapes]

    def restore_limit(self, key: BatchKey, rows: int) -> None:
        """Restore a limit of ``rows`` after a failure that a single row caused."""
        cap = self.caps.get(key.shapes)
        if cap is not None and cap.rows < rows:
            cap.rows, cap.record_fit = rows, 0

    def all(self) -> dict[Shapes, LatencyTable]:
        """Return the tables, the most recently used last."""
        return dict(self._tables)
