"""What takes a base and a little more for each row: a straight line through what was seen lately."""

_MEMORY = 0.95
"""Weight that an observation keeps after each later one: about the last 20 count."""


class FittedLine:
    """A straight line from rows to seconds, least squares with exponential forgetting."""

    __slots__ = ("_products", "_rows", "_seconds", "_squares", "weight")

    def __init__(self) -> None:
        self.weight = self._rows = self._squares = self._seconds = self._products = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Learn that so many rows took so long."""
        self.weight = _MEMORY * self.weight + 1
        self._rows = _MEMORY * self._rows + rows
        self._squares = _MEMORY * self._squares + rows * rows
        self._seconds = _MEMORY * self._seconds + seconds
        self._products = _MEMORY * self._products + rows * seconds

    def scale(self, factor: float) -> None:
        """Believe that everything takes so many times as long as was seen."""
        self._seconds *= factor
        self._products *= factor

    def at(self, rows: int) -> float:
        """Return the seconds that ``rows`` take; 0 before anything was seen."""
        base_s, slope_s = self.line()
        return base_s + slope_s * rows

    def line(self) -> tuple[float, float]:
        """Return the seconds of no rows and of each row more, neither below 0."""
        if not self.weight:
            return 0.0, 0.0
        mean_rows, mean_s = self._rows / self.weight, self._seconds / self.weight
        spread = self._squares / self.weight - mean_rows**2
        # Sizes that hardly differ say nothing of the slope; a batch never takes less for being larger.
        slope = max(0.0, (self._products / self.weight - mean_rows * mean_s) / spread) if spread > 0.25 else 0.0
        base_s = mean_s - slope * mean_rows
        # Steeper than a line through nothing: small sizes would take no time at all, and all would be done in small.
        return (base_s, slope) if base_s >= 0 else (0.0, mean_s / mean_rows)
