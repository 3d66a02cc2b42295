"""How fast the queue drains, for an honest Retry-After."""

from math import ceil

_WEIGHT = 0.2


class DrainRate:
    """A moving average of the runtime's seconds per row, full batches and small ones alike."""

    def __init__(self) -> None:
        self.row_s = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from one finished batch."""
        row_s = seconds / rows
        self.row_s = row_s if not self.row_s else self.row_s + _WEIGHT * (row_s - self.row_s)

    def retry_after_s(self, rows: int) -> int:
        """Return in how many whole seconds ``rows`` waiting rows will be gone: 1 to 60."""
        return min(60, max(1, ceil(rows * self.row_s)))
