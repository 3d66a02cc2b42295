"""How far apart two results of one row are, in units of how far apart the results of different rows are.

A row that is run again among other rows may differ in its last digits: kernels for other batch sizes, half precision
and quantization do that. The result of another row differs by as much as results of different rows differ, which is
the unit here. The unit is never less than a share of the results' magnitude, so that noise is small whatever the model.

Labels (integers, texts, booleans) may turn on the last digit of a number. They count only where a model returns no
floating-point output.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from shoal_schema.wire.datatypes import Array, bfloat16_to_float32

Row = Mapping[str, Array]
"""One row of each output, as a batch of one."""

_FLOORS: Final = {"FP64": 0.01, "FP32": 0.01, "FP16": 0.02, "BF16": 0.05}
"""By datatype, the least that the unit may be, as a share of the magnitude."""
_ELEMENTS: Final = 4096
"""Of a row's output, evenly spread, so many are compared: the comparison holds up the event loop."""
_WEIGHT: Final = 1 / 8
"""Of the rows of one check in what is learned of all."""
_LIST_DIMENSIONS: Final = 3
_ODD: Final = 0.1
"""Distance where numbers agree but for a NaN or an infinity, which may be the overflow of one kernel: no evidence."""


class Ruler:
    """Measures results of one model; the unit of each output is learned from results of different rows."""

    def __init__(self, datatypes: Mapping[str, str]) -> None:
        self._datatypes = datatypes
        self._magnitudes: dict[str, float] = {}
        self._spreads: dict[str, float] = {}
        self.labels_only = not any(datatype in _FLOORS for datatype in datatypes.values())
        """Whether the model returns no floating-point output."""

    def learn(self, rows: Sequence[Row]) -> None:
        """Learn the unit from results of different rows."""
        for name, datatype in self._datatypes.items():
            if datatype not in _FLOORS:
                continue
            of_all = _table([row[name] for row in rows if name in row], datatype)
            if of_all is None or len(of_all) < 2:
                continue
            _average(self._magnitudes, name, float(np.abs(of_all).max(axis=1).mean()))
            spreads = np.abs(of_all[1:] - of_all[:-1]).max(axis=1)
            spreads = spreads[spreads > 0]  # equal rows say nothing of different ones
            if spreads.size:
                _average(self._spreads, name, float(spreads.mean()))

    def units_of_all(self, left: Sequence[Row], right: Sequence[Row]) -> list[float]:
        """Return `units` of each pair: at once where it can be, as a check compares many."""
        far = np.zeros(len(left))
        for name, datatype in self._datatypes.items():
            if datatype not in _FLOORS:
                continue
            a = _table([row[name] for row in left if name in row], datatype)
            b = _table([row[name] for row in right if name in row], datatype)
            if a is None or b is None or a.shape != b.shape or len(a) != len(far):
                return [self.units(one, other) for one, other in zip(left, right, strict=True)]
            magnitudes = np.maximum(np.abs(a).max(axis=1), np.abs(b).max(axis=1))
            magnitudes = np.maximum(magnitudes, self._magnitudes.get(name, 0.0))
            unit = np.maximum(self._spreads.get(name, 0.0), _FLOORS[datatype] * magnitudes)
            difference = np.abs(a - b).max(axis=1)
            far = np.maximum(far, np.divide(difference, unit, out=np.zeros(len(a)), where=difference > 0))
        if self.labels_only:
            return [self.units(one, other) for one, other in zip(left, right, strict=True)]
        numbers: list[float] = far.tolist()
        return numbers

    def units(self, left: Row, right: Row) -> float:
        """Return how far apart two results are: about 1 or more where they are those of different rows."""
        if left.keys() != right.keys():
            return 1.0
        if self.labels_only:
            return 0.0 if all(_same(left[name], right[name]) for name in left) else 1.0
        return max([self._apart(name, left[name], right[name], of_spread=True) for name in left], default=0.0)

    def share(self, left: Row, right: Row) -> float:
        """Return how far apart two results are, as a share of their magnitude; 0 for labels.

        Of lists the order does not count: near equal scores may be sorted either way.
        """
        if self.labels_only or left.keys() != right.keys():
            return 0.0
        return max([self._apart(name, left[name], right[name], of_spread=False) for name in left], default=0.0)

    def _apart(self, name: str, left: Array, right: Array, *, of_spread: bool) -> float:
        datatype = self._datatypes.get(name, "")
        if datatype not in _FLOORS:
            return 0.0
        a, b = _numbers(left, right, datatype)
        finite = np.isfinite(a) & np.isfinite(b)
        odd = int((~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))).sum())
        if 2 * odd > a.size:
            return 1.0 if of_spread else 0.0
        a, b = a[finite], b[finite]
        if not a.size:
            return 0.0
        difference = float(np.abs(a - b).max())
        if not difference:
            return _ODD if odd and of_spread else 0.0
        if not of_spread and left.ndim >= _LIST_DIMENSIONS:
            difference = min(difference, float(np.abs(np.sort(a) - np.sort(b)).max()))
        magnitude = max(float(np.abs(a).max()), float(np.abs(b).max()), self._magnitudes.get(name, 0.0))
        unit = magnitude if not of_spread else max(self._spreads.get(name, 0.0), _FLOORS[datatype] * magnitude)
        return max(difference / unit, _ODD if odd and of_spread else 0.0)


def row_of(outputs: Mapping[str, Array], position: int, cuts: Mapping[str, tuple[int, int]]) -> Row:
    """Return one row of a batch's outputs.

    Args:
        outputs: batch dimension first.
        position: of the row.
        cuts: by output, the axis of the batch that follows an input's length, and the row's own length.
    """
    row: dict[str, Array] = {}
    for name, array in outputs.items():
        own = array[position : position + 1]
        cut = cuts.get(name)
        if cut is not None:
            own = own.take(range(min(cut[1], own.shape[cut[0]])), axis=cut[0])
        row[name] = own
    return row


def _numbers(left: Array, right: Array, datatype: str) -> tuple[Array, Array]:
    """Return the same elements of both, of the region that both have, as FP64."""
    if left.ndim != right.ndim:
        return np.zeros(1), np.ones(1)
    if left.shape != right.shape:
        # As of outputs that are as long as the longest row of their batch asks for.
        region = tuple([slice(0, min(sizes)) for sizes in zip(left.shape, right.shape, strict=True)])
        left, right = left[region], right[region]
    step = max(1, left.size // _ELEMENTS)
    a, b = left.ravel()[::step], right.ravel()[::step]
    if datatype == "BF16":
        a, b = bfloat16_to_float32(a), bfloat16_to_float32(b)
    return a.astype(np.float64), b.astype(np.float64)


def _table(rows: list[Array], datatype: str) -> Array | None:
    """Return the elements of each row as FP64; None where rows differ in shape, or hold a NaN or an infinity."""
    if not rows or not rows[0].size:
        return None
    for row in rows:
        if row.shape != rows[0].shape:
            return None
    step = max(1, rows[0].size // _ELEMENTS)
    stacked = np.stack([row.ravel()[::step] for row in rows])
    numbers = (bfloat16_to_float32(stacked) if datatype == "BF16" else stacked).astype(np.float64)
    return numbers if np.isfinite(numbers).all() else None


def _same(left: Array, right: Array) -> bool:
    return left.shape == right.shape and bool((left == right).all())


def _average(values: dict[str, float], name: str, value: float) -> None:
    known = values.get(name)
    values[name] = value if known is None else known + (value - known) * _WEIGHT
