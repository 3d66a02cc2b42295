"""Time limits of a connection. Pure: times are arguments, in monotonic seconds."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

BUSY_CHECK_S: Final = 30.0
"""Interval of checks while the connection waits for this process."""
STALLED_S: Final = 1.0
"""A check that is this late was delayed by this process: bytes from the peer may not have been read yet."""


class TransferTimeouts(NamedTuple):
    """Time limits of one connection."""

    head_s: float
    """Limit of a request head: from the connection's start, or from the first byte of a later head."""
    body_s: float
    """Limit of a body that arrives more slowly than ``min_bytes_per_s``."""
    write_s: float
    """Limit of a response that is read more slowly than that."""
    idle_s: float
    """Limit between a response and the next request."""
    min_bytes_per_s: float

    def is_fast_enough(self, moved_bytes: int, elapsed_s: float) -> bool:
        """Return whether a transfer keeps the minimum rate over an interval.

        A total limit would cut off a large body on a slow line. A mean rate since the start would let a fast start pay
        for a long stall. So each interval has to keep the rate.

        """
        return moved_bytes >= self.min_bytes_per_s * elapsed_s


class DeadlineTimer:
    """The timer of a connection, which calls ``on_timeout`` at the earliest requested time.

    Args:
        call_later: method of the event loop; returns a handle with ``cancel``.
        clock: returns monotonic seconds.
        on_timeout: called with the present time.
    """

    __slots__ = ("_at_s", "_call_later", "_clock", "_on_timeout", "_timer")

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Any],
        clock: Callable[[], float],
        on_timeout: Callable[[float], None],
    ) -> None:
        self._call_later = call_later
        self._clock = clock
        self._on_timeout = on_timeout
        self._timer: Any = None
        self._at_s = 0.0

    def check_by(self, at_s: float, now_s: float) -> None:
        """Schedule a call of ``on_timeout`` at ``at_s`` at the latest."""
        if self._timer is not None:
            # An earlier call is scheduled already.
            if self._at_s <= at_s:
                return
            self._timer.cancel()
        self._at_s = at_s
        # A time in the past is due at once.
        self._timer = self._call_later(max(0.0, at_s - now_s), self._check_timeouts)

    def stop(self) -> None:
        """Cancel the scheduled call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_timeouts(self) -> None:
        self._timer = None
        now_s = self._clock()
        if now_s - self._at_s > STALLED_S:
            # The event loop was blocked: check again after it has read what arrived.
            self.check_by(now_s + STALLED_S, now_s)
        else:
            self._on_timeout(now_s)
