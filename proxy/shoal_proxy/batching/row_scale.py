"""Typical differences between results of different rows: running quantiles of each element of one output.

Quantiles resist a few huge values. In outputs with heavy tails (ratios, exponentials), the largest values dominate the
mean difference, and two exchanged ordinary rows would differ by only a small part of it.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from shoal_schema.wire.datatypes import Array

TAIL: Final = 0.2
"""Least unit of an element, as a share of its distance from its median: large values differ by a factor."""
_MIN_STEP: Final = 1 / 8
_FEW: Final = 8
"""Differences after which an element's own spread counts more than that of all."""
_MAX_SIZES: Final = 16


class Scale:
    """Running quantiles of the results of rows of one size, for one output."""

    __slots__ = ("_differences", "_learned", "apart", "center", "magnitude", "spread")

    def __init__(self) -> None:
        self.center: Array | None = None
        """Median of the values, by element."""
        self.spread: Array | None = None
        """Median difference of different rows, by element; 0 where all rows have been equal."""
        self.magnitude = 0.0
        """Median over rows of the largest absolute value."""
        self.apart = 1.0
        """Lower quartile of the distance of different rows, by their farthest element; 1 or more."""
        self._learned = self._differences = 0

    @property
    def elements(self) -> int:
        """Return the number of elements; 0 before the first observation."""
        return 0 if self.spread is None else len(self.spread)

    def learn(self, table: Array, floor: float) -> None:
        """Update the quantiles from results of different rows.

        Args:
            table: rows by elements, FP64, finite.
            floor: least unit, as a share of a row's largest value.
        """
        largest = float(np.median(np.abs(table).max(axis=1)))
        differences = np.abs(table[1:] - table[:-1])
        # The median difference of each element, without those of equal rows, which carry no information.
        ordered = np.sort(np.where(differences > 0, differences, np.inf), axis=0)
        counts = (differences > 0).sum(axis=0)
        middle = np.take_along_axis(ordered, np.maximum(0, (counts - 1) // 2)[None], axis=0)[0]
        apart = np.where(counts > 0, middle, 0.0)
        self._learned += 1
        self._differences += len(differences)
        if self.center is None or self.spread is None:
            # More than the median at first: that of two or three differences may be far too small.
            self.center, self.spread = np.median(table, axis=0), np.quantile(differences, 0.75, axis=0)
            self.magnitude = largest
        else:
            step = max(_MIN_STEP, 1 / (1 + self._learned))
            self.magnitude = float(_toward(np.array([self.magnitude]), np.array([largest]), step)[0])
            self.spread = _toward(self.spread, apart, step)
            above = np.sign(table - self.center).mean(axis=0)
            self.center = self.center + step * above * self.spread
        # The distance of different rows, by their farthest element, in the new units.
        far = self._farthest(table[1:], table[:-1], floor)
        far = far[far > 0]
        if far.size:
            step = max(_MIN_STEP, 1 / self._learned)
            found = np.quantile(far, 0.25, keepdims=True)
            self.apart = max(1.0, float(_toward(np.array([self.apart]), found, step)[0]))

    def units(self, left: Array, right: Array, floor: float) -> Array:
        """Return the distance between corresponding rows of two tables.

        Args:
            left: results, rows by elements, finite.
            right: results to compare with ``left``, of the same shape.
            floor: least unit, as a share of a row's largest value.
        """
        farthest: Array = self._farthest(left, right, floor) / self.apart
        return farthest

    def _farthest(self, left: Array, right: Array, floor: float) -> Array:
        difference = np.abs(left - right)
        magnitude = np.maximum(np.abs(left).max(axis=1), np.abs(right).max(axis=1))
        unit = (floor * np.maximum(magnitude, self.magnitude))[:, None]
        if self.center is not None and self.spread is not None:
            tail = TAIL * np.maximum(np.abs(left - self.center), np.abs(right - self.center))
            unit = np.maximum(np.maximum(unit, self.spread), tail)
            # With few observations the spread of all elements stands in for each element's own.
            unit = np.maximum(unit, np.median(self.spread) / (1 + self._differences / _FEW))
        unit = np.broadcast_to(unit, difference.shape)
        far = np.divide(difference, unit, out=np.zeros_like(difference), where=difference > 0)
        farthest: Array = far.max(axis=1)
        return farthest


class Scales:
    """The `Scale` of one output for each recent row size."""

    def __init__(self) -> None:
        self._of_size: dict[int, Scale] = {}

    def __getitem__(self, elements: int) -> Scale:
        """Return the scale of rows of ``elements`` elements; empty if not learned."""
        return self._of_size.get(elements) or Scale()

    def __iter__(self) -> Iterator[Scale]:
        return iter(self._of_size.values())

    def learn(self, table: Array, floor: float) -> None:
        """Update the scale of rows of one size from results of different rows."""
        scale = self._of_size.pop(table.shape[1], None) or Scale()
        self._of_size[table.shape[1]] = scale
        scale.learn(table, floor)
        if len(self._of_size) > _MAX_SIZES:
            del self._of_size[next(iter(self._of_size))]


def _toward(known: Array, found: Array, step: float) -> Array:
    """Return ``known`` moved toward ``found`` by a factor of e^``step`` at most; ``found`` where ``known`` is 0."""
    both = (known > 0) & (found > 0)
    with np.errstate(divide="ignore"):
        shift = np.clip(np.log(np.where(both, found, 1.0)) - np.log(np.where(both, known, 1.0)), -step, step)
    moved: Array = np.where(both, known * np.exp(shift), np.maximum(known, found))
    return moved
