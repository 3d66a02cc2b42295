"""A safety margin: a percentile of prediction errors, updated by each error."""

_STEP = 0.25
"""Change of the factor after one error."""
_MAX_FACTOR = 8.0
_FOLLOW = 0.05
"""Weight of the newest error in the mean deviation."""


class Margin:
    """A percentile of recent prediction errors, at least 0.

    The percentile is a factor times the mean deviation. An error above the percentile raises the factor, and an error
    below lowers it, in the ratio that leaves the wanted share of errors below.
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
