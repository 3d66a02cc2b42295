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
