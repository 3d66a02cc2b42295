"""The latency model: batch times by rows, estimated from completed batches.

The table has knots: the runtime's allowed sizes, or eight per power of two, each with its mean time. Sizes between two
knots are interpolated; a padded size has the time of the size that it is padded to. A knot with few observations uses a
straight line (`FittedLine`), fitted to recent batches of every size. The table never falls with size.

A margin above the mean makes the estimate the 95th percentile. The margin is measured in mean deviations, and follows
the share of batches that take longer than predicted. A runtime with constant times has no margin. Four successive
batches that all took a quarter more, or all a fifth less, than expected are not noise: the device has become slower or
faster, and the whole table is scaled. A single slow batch counts as at most twice its expected time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from statistics import median

"""Durations with a fixed part and a part per row, as a fitted straight line."""

_MEMORY = 0.95
"""Weight that an observation keeps after each later one: about the last 20 count."""


class FittedLine:
    """Least-squares line from rows to seconds; old observations fade out."""

    __slots__ = ("_products", "_rows", "_seconds", "_squares", "weight")

    def __init__(self) -> None:
        self.weight = self._rows = self._squares = self._seconds = self._products = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Record that ``rows`` took ``seconds``."""
        self.weight = _MEMORY * self.weight + 1
        self._rows = _MEMORY * self._rows + rows
        self._squares = _MEMORY * self._squares + rows * rows
        self._seconds = _MEMORY * self._seconds + seconds
        self._products = _MEMORY * self._products + rows * seconds

    def scale(self, factor: float) -> None:
        """Multiply all observed durations by ``factor``."""
        self._seconds *= factor
        self._products *= factor

    def at(self, rows: int) -> float:
        """Return the seconds that ``rows`` take; 0 before the first observation."""
        base_s, slope_s = self.line()
        return base_s + slope_s * rows

    def line(self) -> tuple[float, float]:
        """Return the line's intercept (s) and slope (s per row), each at least 0."""
        if not self.weight:
            return 0.0, 0.0
        # Weighted least squares from running sums.
        mean_rows, mean_s = self._rows / self.weight, self._seconds / self.weight
        spread = self._squares / self.weight - mean_rows**2
        # Sizes that hardly differ do not determine the slope; a larger batch never takes less.
        slope = max(0.0, (self._products / self.weight - mean_rows * mean_s) / spread) if spread > 0.25 else 0.0
        base_s = mean_s - slope * mean_rows
        # A negative base would predict no time for small sizes, and all batches would be small: go through the origin.
        return (base_s, slope) if base_s >= 0 else (0.0, mean_s / mean_rows)


_KNOT_WEIGHT = 20.0
"""Number of batches in a knot's average; the fitted line has the weight of one batch."""
QUANTILE = 0.95
_SEEN = 1.0
"""Batches of about a size after which its time counts as measured."""
_DRIFT_BATCHES = 4
_SLOWER, _FASTER = 1.25, 0.8
_CLIP = 2.0
"""Factor from the expected time beyond which a single batch is clipped."""
_MIN_S = 1e-7
"""Least duration of a batch: a coarse clock may show none."""


def knots_for(max_rows: int, allowed_sizes: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the batch sizes for which a latency table stores a time."""
    if allowed_sizes:
        below = [size for size in allowed_sizes if size < max_rows]
        return tuple(allowed_sizes[: len(below) + 1])
    sizes = list(range(1, min(max_rows, 8) + 1))
    while sizes[-1] < max_rows:
        # Eight knots to an octave: the step is an eighth of the power of two below.
        sizes.append(min(max_rows, sizes[-1] + (1 << (sizes[-1].bit_length() - 4))))
    return tuple(sizes)


class LatencyTable:
    """Estimated batch time (s) by batch size; 0 before the first batch."""

    def __init__(self, max_rows: int, allowed_sizes: Sequence[int] = ()) -> None:
        self.sizes = knots_for(max_rows, allowed_sizes)
        self.padded_sizes = self.sizes if allowed_sizes else ()
        self.batches = 0
        """Batches observed, without those of warm-up."""
        self._values = [0.0] * len(self.sizes)
        self._weights = [0.0] * len(self.sizes)
        self._fit = FittedLine()
        self._margin = Margin(QUANTILE)
        self._ratios: list[float] = []
        self._means: list[float] = list(self._values)
        self._highs: list[float] = list(self._values)

    @property
    def known(self) -> bool:
        """Return whether any batch has been observed."""
        return self._fit.weight > 0

    @property
    def margin(self) -> float:
        """Return the 95th percentile's distance from the mean, as a fraction of the mean."""
        return self._margin.value

    def observe(self, rows: int, seconds: float) -> None:
        """Record that a batch of ``rows`` took ``seconds``; invalid durations are ignored."""
        if not 0 <= seconds < inf:
            return
        self.batches += 1
        seconds = max(seconds, _MIN_S)
        expected_s = self.mean_s(rows)
        if expected_s > 0:
            ratio = seconds / expected_s
            # Several batches in a row that were all slower, or all faster, than expected: the device has changed. Scale
            # the table first, so that the margin measures only variation.
            ratios = self._ratios = [*self._ratios[1 - _DRIFT_BATCHES :], ratio]
            slower, faster = min(ratios) > _SLOWER + self.margin, max(ratios) < _FASTER
            if len(ratios) == _DRIFT_BATCHES and (slower or faster):
                factor = median(ratios)
                self._ratios = []
                self._values = [value * factor for value in self._values]
                # Older measurements now weigh no more than one batch.
                self._weights = [min(weight, 1.0) for weight in self._weights]
                self._fit.scale(factor)
                self._rebuild()
            expected_s = self.mean_s(rows)
            # An error of a value that was guessed from other sizes is no variation of batches.
            seen = sum([self._weights[index] * share for index, share in self._shares(rows)])
            if expected_s / _CLIP <= seconds <= expected_s * _CLIP and seen >= _SEEN:
                self._margin.observe(seconds / expected_s - 1)
            # A single outlier counts as at most a factor of `_CLIP`.
            seconds = min(max(seconds, expected_s / _CLIP), expected_s * _CLIP)
        self._learn(rows, seconds)
        self._rebuild()

    def mean_s(self, rows: int) -> float:
        """Return the mean time of a batch of ``rows``."""
        return self._at(self._means, rows)

    def p95_s(self, rows: int) -> float:
        """Return the 95th percentile of the time of a batch of ``rows``."""
        return self._at(self._highs, rows)

    def largest(self, within_s: float, most: int) -> int:
        """Return the largest size up to ``most`` with a `p95_s` up to ``within_s``, or 0."""
        if self.p95_s(most) <= within_s:
            return most
        index = bisect_right(self._highs, within_s) - 1
        if index < 0:
            return 0
        rows = self.sizes[index]
        if not self.padded_sizes and index + 1 < len(self.sizes):
            # Interpolate between the knots on both sides of the bound.
            low, high = self._highs[index], self._highs[index + 1]
            rows += int((self.sizes[index + 1] - rows) * (within_s - low) / (high - low))
        return min(rows, most)

    def measurements(self) -> list[tuple[int, float, float, bool]]:
        """Return the table: one entry per stored batch size.

        Each entry has the size, the mean (s), the 95th percentile (s), and whether a batch of about this size was
        measured.
        """
        seen = [weight > 0 for weight in self._weights]
        return list(zip(self.sizes, self._means, self._highs, seen, strict=True))

    def bounds(self, rows: int) -> tuple[float, float]:
        """Return a lower and an upper bound of the mean time of a batch of ``rows``.

        A larger batch never takes less time, so the nearest measured sizes are the bounds: 0 if none is smaller,
        infinity if none is larger. For a measured size, both bounds are its time.
        """
        rows = self._padded(rows)
        below = [mean for size, mean, _, seen in self.measurements() if seen and size <= rows]
        above = [mean for size, mean, _, seen in self.measurements() if seen and size >= rows]
        return (below[-1] if below else 0.0), (above[0] if above else inf)

    @property
    def largest_measured(self) -> int:
        """Return the largest measured size; 0 before the first batch."""
        return max([size for size, weight in zip(self.sizes, self._weights, strict=True) if weight > 0], default=0)

    def preset(self, seconds: Sequence[tuple[int, float]]) -> None:
        """Add earlier measurements (rows, seconds), such as the runtime's warm-up."""
        for rows, time_s in sorted(seconds):
            self._learn(rows, max(time_s, _MIN_S))
            # A size between two knots is divided by their expected times, which must be current.
            self._rebuild()

    def _at(self, values: list[float], rows: int) -> float:
        index = bisect_left(self.sizes, rows)
        if index >= len(self.sizes):
            return values[-1]
        size = self.sizes[index]
        # A padded size, or one below the first knot, takes the time of the knot above.
        if size == rows or self.padded_sizes or index == 0:
            return values[index]
        below = self.sizes[index - 1]
        return values[index - 1] + (values[index] - values[index - 1]) * (rows - below) / (size - below)

    def _learn(self, rows: int, seconds: float) -> None:
        # A padded batch costs what the padded size costs; the line must not see a smaller one.
        self._fit.observe(self._padded(rows), seconds)
        ratio = seconds / expected_s if (expected_s := self.mean_s(rows)) > 0 else 1.0
        for index, share in self._shares(rows):
            value = self._values[index] if self._weights[index] else self._means[index]
            # A size between two knots scales both by its ratio to the expected time.
            seen_s = value * ratio if value > 0 and self.sizes[index] != rows and not self.padded_sizes else seconds
            # A moving average over about the last `_KNOT_WEIGHT` batches.
            weight = min(self._weights[index] + share, _KNOT_WEIGHT)
            self._values[index] = value + (seen_s - value) * share / weight
            self._weights[index] = weight

    def _padded(self, rows: int) -> int:
        return self.sizes[min(bisect_left(self.sizes, rows), len(self.sizes) - 1)] if self.padded_sizes else rows

    def _shares(self, rows: int) -> list[tuple[int, float]]:
        """Return indices and weights to interpolate the time of ``rows`` rows."""
        index = min(bisect_left(self.sizes, rows), len(self.sizes) - 1)
        if index == 0 or self.padded_sizes or self.sizes[index] <= rows:
            return [(index, 1.0)]
        below, above = self.sizes[index - 1], self.sizes[index]
        share = (rows - below) / (above - below)
        return [(index - 1, 1 - share), (index, share)]

    def _rebuild(self) -> None:
        base_s, slope_s = self._fit.line()
        blended = [
            (value * weight + base_s + slope_s * size) / (weight + 1)
            for size, value, weight in zip(self.sizes, self._values, self._weights, strict=True)
        ]
        # A larger batch never takes less: each knot is at least the one below.
        self._means = list(accumulate(blended, max))
        high = 1 + self.margin
        self._highs = [mean * high for mean in self._means]


"""A safety margin: a percentile of prediction errors, updated by each error."""

_STEP = 0.25
"""Change of the factor after one error."""
_MAX_FACTOR = 8.0
_FOLLOW = 0.05
"""Weight of the newest error in the mean deviation."""


class Margin:
    """A percentile of recent prediction errors, at least 0.

    The percentile is a factor times the mean deviation. Each error above it raises the factor, and each error below
    lowers it. The two steps are chosen so that, on average, the share ``quantile`` of errors lies below.
    """

    __slots__ = ("_deviation", "_factor", "_quantile")

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._deviation = 0.0
        self._factor = 2.0

    @property
    def value(self) -> float:
        """Return the current percentile."""
        return self._factor * self._deviation

    def observe(self, error: float) -> None:
        """Record one error: actual minus expected."""
        # In balance, as many errors exceed the margin as the quantile leaves.
        self._factor += _STEP * (self._quantile if error > self.value else self._quantile - 1)
        self._factor = min(max(self._factor, 0.0), _MAX_FACTOR)
        self._deviation += _FOLLOW * (abs(error) - self._deviation)
