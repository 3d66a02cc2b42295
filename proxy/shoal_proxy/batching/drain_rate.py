"""The drain rate of the queue, for Retry-After."""

from math import ceil

_WEIGHT = 0.2
"""Weight of the newest batch in the moving average."""


class DrainRate:
    """A moving average of the runtime's seconds per row, over batches of all sizes."""

    def __init__(self) -> None:
        self.row_s = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Record that a batch of ``rows`` took ``seconds``."""
        row_s = seconds / rows
        self.row_s = row_s if not self.row_s else self.row_s + _WEIGHT * (row_s - self.row_s)

    def retry_after_s(self, rows: int) -> int:
        """Return the seconds, 1 to 60, after which ``rows`` waiting rows will have been served."""
        return min(60, max(1, ceil(rows * self.row_s)))
