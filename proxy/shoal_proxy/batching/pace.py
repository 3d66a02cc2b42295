"""When the runtime will be free, and when the next batch should leave so that the device never waits.

    overhead  = round trip - forward     the host's work around an unqueued batch: encode, wire, preprocess, split

A batch that leaves ``overhead / 2`` before the running one's forward ends arrives just as the device falls free.
Earlier, it would miss rows that were still to come; later, the device would wait. A foreign runtime does not tell what
its forward took; then its round trip counts as such, and nothing leaves ahead but full batches.
"""

from shoal_proxy.batching.pending import NEVER_S

_WEIGHT = 0.1
_MARGIN_S = 0.0002
"""What an alarm and the turn of the event loop may be late."""
_MIN_S = _MARGIN_S / 2
"""With less of it to hide, leaving a margin early loses more rows than the device's wait would cost."""
_WORTH = 2.0
"""Where forward takes less than this many overheads, the host is the bottleneck and larger batches help it more."""


class Pace:
    """The host's time around a batch; none until the runtime has told some."""

    def __init__(self) -> None:
        self.overhead_s = 0.0

    def observe(self, overhead_s: float) -> None:
        """Learn from a batch that found the runtime free."""
        change_s = max(0.0, overhead_s) - self.overhead_s
        self.overhead_s += change_s * (1.0 if not self.overhead_s else _WEIGHT)

    def free_s(self, forward_s: float, *, sent_s: float, freed_s: float) -> float:
        """Return when the device is through with a batch.

        Args:
            forward_s: what the batch is expected to take.
            sent_s: when it was sent.
            freed_s: when the runtime answered the one before; later than ``sent_s`` when it had to queue.
        """
        half_s = self.overhead_s / 2
        started_s = sent_s + half_s if freed_s <= sent_s else freed_s - half_s
        return started_s + forward_s

    def send_ahead_s(self, forward_s: float, free_s: float) -> float:
        """Return when the batch behind the running one should leave, `NEVER_S` for not before that one is back."""
        if forward_s < _WORTH * self.overhead_s or self.overhead_s < _MIN_S:
            return NEVER_S
        return free_s - self.overhead_s / 2 - _MARGIN_S
