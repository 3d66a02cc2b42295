"""One latency table per shape of input, since a longer row takes longer, and the most rows that its memory held."""

from __future__ import annotations

from collections import OrderedDict

from shoal_proxy.batching.latency import LatencyTable
from shoal_proxy.batching.pending import BatchKey

Shapes = tuple[tuple[str, tuple[int, ...]], ...]

_MOST_SHAPES = 64


class Tables:
    """The tables of one model; of many shapes the ones used last."""

    def __init__(self, max_rows: int, allowed_sizes: tuple[int, ...] = ()) -> None:
        self._max_rows = max_rows
        self._allowed_sizes = allowed_sizes
        self._presets: tuple[tuple[int, float], ...] = ()
        self._tables: OrderedDict[Shapes, LatencyTable] = OrderedDict()
        self.caps: dict[Shapes, int] = {}
        """Rows that a batch of these shapes may have: with more, the device ran out of memory."""

    def __getitem__(self, key: BatchKey) -> LatencyTable:
        table = self._tables.get(key.shapes)
        if table is None:
            table = self._tables[key.shapes] = LatencyTable(self._max_rows, self._allowed_sizes)
            table.preset(self._presets)
            if len(self._tables) > _MOST_SHAPES:
                self._tables.popitem(last=False)
        elif len(self._tables) > 1:
            self._tables.move_to_end(key.shapes)
        return table

    def preset(self, seconds: tuple[tuple[int, float], ...]) -> None:
        """Begin every table with what the runtime measured when it warmed up: rows and seconds."""
        self._presets = seconds

    def max_rows(self, key: BatchKey) -> int:
        """Return how many rows a batch of ``key`` may have."""
        return min(self._max_rows, self.caps.get(key.shapes, self._max_rows)) if self.caps else self._max_rows

    @property
    def least_max_rows(self) -> int:
        """Return the least that any shape may have."""
        return min([self._max_rows, *self.caps.values()])

    def ran_out_of_memory(self, key: BatchKey, rows: int) -> int:
        """Remember that ``rows`` were too many, and return how many may be tried."""
        cap = max(1, min(rows // 2, self.max_rows(key)))
        self.caps[key.shapes] = cap
        return cap

    def all(self) -> dict[Shapes, LatencyTable]:
        """Return the tables, the one used last at the end."""
        return dict(self._tables)
