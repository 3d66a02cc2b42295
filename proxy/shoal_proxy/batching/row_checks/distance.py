"""The distance of two results of one row, in units of the typical distance between results of different rows.

A row that is run again among other rows may have a result with other last digits, caused by kernels for other batch
sizes, half precision or quantization. The typical difference between results of different rows (`Scale`) is the
unit. The unit is never less than a share of the results' magnitude, so that noise is small for any model.

The scale is made of running quantiles of each element of an output. Quantiles resist a few huge values: in outputs with
heavy tails (ratios, exponentials), the largest values dominate the mean difference, and two exchanged ordinary rows
would differ by only a small part of it.

Labels (integers, texts, booleans) may depend on the last digit of a number. Labels count only if a model returns no
floating-point output, and then must be equal. Integers that usually differ by large amounts are scores, and are
measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from shoal_schema.wire.datatypes import Array, bfloat16_to_float32

TAIL: Final = 0.2
"""Least unit of an element, as a share of its distance from its median: large values differ by a factor."""
_MIN_STEP: Final = 1 / 8
_FEW: Final = 8
"""Differences after which an element's own spread counts more than that of all."""
_MAX_SIZES: Final = 16


class Scale:
    """Typical values of one output, learned for rows of one size.

    Stored as running quantiles per element.
    """

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
        """Return the number of elements of a row; 0 before the first observation."""
        return 0 if self.spread is None else len(self.spread)

    def learn(self, table: Array, floor: float) -> None:
        """Update the quantiles from results of different rows.

        Args:
            table: rows by elements, FP64, finite.
            floor: lower bound of the unit, as a share of a row's largest value.
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
            floor: lower bound of the unit, as a share of a row's largest value.
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


Row = Mapping[str, Array]
"""One row of each output, as a batch of one."""

_FLOATS: Final = {"FP64": 0.01, "FP32": 0.01, "FP16": 0.02, "BF16": 0.05}
_INTEGERS: Final = dict.fromkeys(("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"), 0.01)
_FLOORS: Final = {**_FLOATS, **_INTEGERS}
"""By datatype, the least unit, as a share of the magnitude."""
SCORES: Final = 8.0
"""Least median difference of integers that are scores, as of a quantized output: a difference of 1 may be noise."""
_MANY: Final = 4
"""Scores of a row that no other row has by chance."""
_ELEMENTS: Final = 2048
"""Most elements compared of a row's output, evenly spread: the comparison blocks the event loop."""
_LIST_DIMENSIONS: Final = 3
"""Dimensions from which an output holds a list for each row."""
_ODD: Final = 0.1
"""Distance of numbers that differ only in a NaN or an infinity. A kernel may overflow, so this is not evidence."""


class ResultDistance:
    """The distance between results of one model, in learned units per output."""

    def __init__(self, datatypes: Mapping[str, str]) -> None:
        self.labels_only = not any(datatype in _FLOATS for datatype in datatypes.values())
        """Whether the model returns no floating-point output."""
        numbers = _INTEGERS if self.labels_only else _FLOATS
        self._datatypes = {name: datatype for name, datatype in datatypes.items() if datatype in numbers}
        """Datatypes of the measured outputs."""
        self._scales = {name: Scales() for name in self._datatypes}

    @property
    def exact(self) -> bool:
        """Return whether results of different rows may be equal by chance."""
        return self.labels_only and not any(
            _is_of_scores(each) and each.elements >= _MANY for one in self._scales.values() for each in one
        )

    def learn(self, rows: Sequence[Row]) -> None:
        """Update the units from results of different rows."""
        for name, datatype in self._datatypes.items():
            table = _table([row[name] for row in rows if name in row], datatype)
            if table is not None and len(table) > 1:
                self._scales[name].learn(table, _FLOORS[datatype])

    def units_of_all(self, left: Sequence[Row], right: Sequence[Row]) -> list[float]:
        """Return the distance of each pair of results, as `units` does."""
        far = np.zeros(len(left))
        for name, datatype in self._datatypes.items():
            a = _table([row[name] for row in left if name in row], datatype)
            b = _table([row[name] for row in right if name in row], datatype)
            # Results that are not finite, or differ in shape, are compared pair by pair.
            if self.labels_only or a is None or b is None or a.shape != b.shape or len(a) != len(far):
                return [self.units(one, other) for one, other in zip(left, right, strict=True)]
            far = np.maximum(far, self._scales[name][a.shape[1]].units(a, b, _FLOORS[datatype]))
        if self.labels_only:
            return [self.units(one, other) for one, other in zip(left, right, strict=True)]
        numbers: list[float] = far.tolist()
        return numbers

    def units(self, left: Row, right: Row) -> float:
        """Return the distance of two results: about 1 or more if they belong to different rows."""
        if left.keys() != right.keys():
            return 1.0
        return max([self._apart(name, left[name], right[name]) for name in left], default=0.0)

    def share(self, left: Row, right: Row) -> float:
        """Return the distance of two results as a share of their magnitude; 0 for labels.

        The order of lists does not count: near equal scores may be sorted either way.
        """
        farthest = 0.0
        if self.labels_only or left.keys() != right.keys():
            return farthest
        for name in [name for name in self._datatypes if name in left]:
            a, b = _numbers(left[name], right[name], self._datatypes[name])
            finite = np.isfinite(a) & np.isfinite(b)
            magnitude = self._scales[name][a.size].magnitude
            a, b = a[finite], b[finite]
            magnitude = max(magnitude, float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0)))
            difference = np.abs(a - b)
            if left[name].ndim >= _LIST_DIMENSIONS:
                difference = np.minimum(difference.max(initial=0.0), np.abs(np.sort(a) - np.sort(b)))
            if magnitude:
                farthest = max(farthest, float(difference.max(initial=0.0)) / magnitude)
        return farthest

    def _apart(self, name: str, left: Array, right: Array) -> float:
        if self.labels_only and left.shape == right.shape and (left == right).all():
            return 0.0
        datatype = self._datatypes.get(name)
        if datatype is None or (self.labels_only and left.shape != right.shape):
            return 1.0 if self.labels_only else 0.0
        a, b = _numbers(left, right, datatype)
        finite = np.isfinite(a) & np.isfinite(b)
        # Elements that are not finite in one result, and not the same in the other.
        odd = int((~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))).sum())
        # Most elements are not finite in only one of the two.
        if 2 * odd > a.size:
            return 1.0
        if not a.size:
            return 0.0
        scale = self._scales[name][a.size]
        if self.labels_only and not _is_of_scores(scale):
            return 1.0
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
        far = float(scale.units(a[None], b[None], _FLOORS[datatype])[0])
        return max(far, _ODD if odd else 0.0)


def row_of(outputs: Mapping[str, Array], position: int, cuts: Mapping[str, tuple[int, int]]) -> Row:
    """Return one row of a batch's outputs.

    Args:
        outputs: a batch's outputs, batch dimension first.
        position: index of the row.
        cuts: for each output of variable length, the padded axis and the row's own length.
    """
    row: dict[str, Array] = {}
    for name, array in outputs.items():
        own = array[position : position + 1]
        cut = cuts.get(name)
        if cut is not None:
            own = own.take(range(min(cut[1], own.shape[cut[0]])), axis=cut[0])
        row[name] = own
    return row


def _is_of_scores(scale: Scale) -> bool:
    return scale.spread is not None and float(np.median(scale.spread)) >= SCORES


def _numbers(left: Array, right: Array, datatype: str) -> tuple[Array, Array]:
    """Return a sample of corresponding elements of two arrays, from their common region, as FP64."""
    if left.ndim != right.ndim:
        return np.zeros(1), np.ones(1)
    if left.shape != right.shape:
        # Outputs that are as long as the longest row of their batch.
        region = tuple([slice(0, min(sizes)) for sizes in zip(left.shape, right.shape, strict=True)])
        left, right = left[region], right[region]
    step = max(1, left.size // _ELEMENTS)
    a, b = left.ravel()[::step], right.ravel()[::step]
    if datatype == "BF16":
        a, b = bfloat16_to_float32(a), bfloat16_to_float32(b)
    return a.astype(np.float64), b.astype(np.float64)


def _table(rows: list[Array], datatype: str) -> Array | None:
    """Return results as an FP64 matrix of rows by elements.

    Returns None if shapes differ or a value is not finite.
    """
    if not rows or not rows[0].size:
        return None
    for row in rows:
        if row.shape != rows[0].shape:
            return None
    step = max(1, rows[0].size // _ELEMENTS)
    stacked = np.stack([row.ravel()[::step] for row in rows])
    numbers = (bfloat16_to_float32(stacked) if datatype == "BF16" else stacked).astype(np.float64)
    return numbers if np.isfinite(numbers).all() else None
