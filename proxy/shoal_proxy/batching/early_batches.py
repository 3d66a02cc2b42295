"""Decide when to send a batch to a busy device, and when to hold a batch.

Host timing:

    overhead  = round trip - forward     the host's work around an unqueued batch: encode, wire, preprocess, split

A batch sent ``overhead / 2`` before the running forward pass ends arrives just as the device becomes free. A batch sent
earlier would miss rows still to come; with a batch sent later, the device would wait. Runtimes other than Shoal's do
not report the forward time. Then the round trip counts as the forward time, and only full batches are sent ahead.

A clump is many requests in quick succession. Clients that fan out, retry together, or sit behind a gateway that batches
its wake-ups send many requests within microseconds. Starting the first request of a clump alone makes the rest wait for
it. While more than half of all requests arrive less than `PATIENCE_S` after the previous request, a batch for an idle
runtime is held until no request has arrived for `PATIENCE_S`. With Poisson arrivals at usual rates the share is small,
and no batch is held.
"""

from shoal_proxy.batching.pending import NEVER_S

_TIMING_WEIGHT = 0.1
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
        self.overhead_s += change_s * (1.0 if not self.overhead_s else _TIMING_WEIGHT)

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


PATIENCE_S = 0.0002
MAX_HOLD_S = 0.001
"""Longest clump to wait for, from its first request."""
_SHARE = 0.5
"""Share of requests in clumps above which batches are held."""
_CLUMP_WEIGHT = 0.01
"""Weight of the newest arrival in the moving average."""


class Clumps:
    """Moving average of the share of requests that arrive in clumps."""

    __slots__ = ("_last_s", "_share")

    def __init__(self) -> None:
        self._last_s = -NEVER_S
        self._share = 0.0

    def arrived(self, now_s: float) -> None:
        """Record the arrival of a request, admitted or rejected."""
        self._share += _CLUMP_WEIGHT * ((now_s - self._last_s <= PATIENCE_S) - self._share)
        self._last_s = now_s

    def hold_s(self, now_s: float, oldest_s: float) -> float:
        """Return the time (s) to wait for the rest of a clump that began at ``oldest_s``."""
        if self._share <= _SHARE:
            return 0.0
        # Until the clump has paused, or has lasted too long.
        return max(0.0, min(self._last_s + PATIENCE_S, oldest_s + MAX_HOLD_S) - now_s)
