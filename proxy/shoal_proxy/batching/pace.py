"""What the proxy learns of the runtime's time, and when the next batch should leave so that the device never waits.

    forward(rows) = alpha + beta * rows      fitted to the runtime's own ``forward_us``, recent batches counting most
    overhead      = round trip - forward     the host's work around an unqueued batch: encode, wire, preprocess, split

A batch that leaves ``overhead / 2`` before the running one's forward ends arrives just as the device falls free.
Earlier, it would miss rows that were still to come; later, the device would wait. A foreign runtime tells no
``forward_us``; then nothing is learned and nothing leaves ahead but full batches.
"""

from __future__ import annotations

_MEMORY = 0.95
"""Weight that a batch keeps after each later one: about the last 20 batches count."""
_MARGIN_S = 0.001
"""The event loop's timers are a millisecond coarse."""
_WORTH = 2.0
"""Where forward takes less than this many overheads, the host is the bottleneck and larger batches help it more."""


class Pace:
    """Forward time per batch size, and the overhead around it; empty until the runtime has told some."""

    def __init__(self) -> None:
        self.overhead_s = 0.0
        self._weight = self._rows = self._squares = 0.0
        self._seconds = self._products = 0.0

    def observe(self, rows: int, forward_s: float, overhead_s: float | None) -> None:
        """Learn from one batch; ``overhead_s`` is None when it queued behind another at the runtime."""
        self._weight = _MEMORY * self._weight + 1
        self._rows = _MEMORY * self._rows + rows
        self._squares = _MEMORY * self._squares + rows * rows
        self._seconds = _MEMORY * self._seconds + forward_s
        self._products = _MEMORY * self._products + rows * forward_s
        if overhead_s is not None:
            change = overhead_s - self.overhead_s
            self.overhead_s += change * (1.0 if not self.overhead_s else 0.1)

    def forward_s(self, rows: int) -> float:
        """Return the expected forward time of a batch, never negative; 0 while nothing is known."""
        if not self._weight:
            return 0.0
        mean_rows, mean_s = self._rows / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - mean_rows**2
        # Sizes that hardly differ say nothing of the slope.
        slope = (self._products / self._weight - mean_rows * mean_s) / spread if spread > 0.25 else 0.0
        return max(0.0, mean_s + slope * (rows - mean_rows))

    def send_ahead_s(self, rows: int, *, sent_s: float, freed_s: float) -> float | None:
        """Return when the batch behind the running one should leave, None for not before that one is back.

        Args:
            rows: of the running batch.
            sent_s: when it was sent.
            freed_s: when the runtime answered the one before; later than ``sent_s`` when it had to queue.
        """
        forward_s = self.forward_s(rows)
        if forward_s < _WORTH * self.overhead_s or not self.overhead_s:
            return None
        half_s = self.overhead_s / 2
        started_s = sent_s + half_s if freed_s <= sent_s else freed_s - half_s
        return started_s + forward_s - half_s - _MARGIN_S
