"""How far to stay on the safe side: a percentile of errors that are seen one at a time."""

_STEP = 0.25
_MAX_FACTOR = 8.0
_FOLLOW = 0.05


class Margin:
    """A percentile of recent errors, at least 0; what never errs has none.

    It is counted in mean deviations, and steered up when an error exceeds it and down when not, at such a ratio that
    just as many do as should.
    """

    __slots__ = ("_deviation", "_factor", "_quantile")

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._deviation = 0.0
        self._factor = 2.0

    @property
    def value(self) -> float:
        """Return what that share of the errors stays below."""
        return self._factor * self._deviation

    def observe(self, error: float) -> None:
        """Learn from one error: how much more it was than expected."""
        self._factor += _STEP * (self._quantile if error > self.value else self._quantile - 1)
        self._factor = min(max(self._factor, 0.0), _MAX_FACTOR)
        self._deviation += _FOLLOW * (abs(error) - self._deviation)
