"""Estimate when the device is free, and when to send the next batch.

    overhead  = round trip - forward     the host's work around an unqueued batch: encode, wire, preprocess, split

A batch sent ``overhead / 2`` before the running forward pass ends arrives just as the device becomes free. A batch sent
earlier would miss rows still to come; with a batch sent later, the device would wait. Runtimes other than Shoal's do
not report the forward time. Then the round trip counts as the forward time, and only full batches are sent ahead.
"""

from shoal_proxy.batching.pending import NEVER_S

_WEIGHT = 0.1
"""Weight of the newest batch in the moving average."""
_MARGIN_S = 0.0002
"""Delay of a timer and of one pass of the event loop."""
_MIN_S = _MARGIN_S / 2
"""Least overhead worth hiding: below it, the margin loses more rows than an idle device costs."""
_WORTH = 2.0
"""Multiple of the host's overhead below which a forward pass makes the host the bottleneck; larger batches help."""


class HostTiming:
    """The host's overhead per batch, as a moving average; initially 0."""

    def __init__(self) -> None:
        self.overhead_s = 0.0

    def observe(self, overhead_s: float) -> None:
        """Record the overhead (s) of a batch that was sent to an idle runtime."""
        change_s = max(0.0, overhead_s) - self.overhead_s
        self.overhead_s += change_s * (1.0 if not self.overhead_s else _WEIGHT)

    def free_s(self, forward_s: float, *, sent_s: float, freed_s: float) -> float:
        """Return the time at which the device finishes a batch.

        Args:
            forward_s: expected duration of the batch's forward pass.
            sent_s: time at which the batch was sent.
            freed_s: time at which the runtime returned the previous batch; later than ``sent_s`` if this one waited.
        """
        # Half of the overhead lies before the forward pass, half after it.
        half_s = self.overhead_s / 2
        started_s = sent_s + half_s if freed_s <= sent_s else freed_s - half_s
        return started_s + forward_s

    def send_ahead_s(self, forward_s: float, free_s: float) -> float:
        """Return when to send a batch to the busy runtime; `NEVER_S` for not at all."""
        if forward_s < _WORTH * self.overhead_s or self.overhead_s < _MIN_S:
            return NEVER_S
        return free_s - self.overhead_s / 2 - _MARGIN_S
