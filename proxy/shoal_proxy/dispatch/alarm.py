"""A timer finer than the event loop's, whose resolution is a millisecond.

A batch that closes a millisecond early misses rows; a batch that closes a millisecond late leaves the device idle. On
Linux a timerfd wakes the loop within about 10 us. Elsewhere the loop's timers are used.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """One-shot timer that calls ``ring`` at the monotonic time given to `set`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self.is_set = False
        self._spec = _Itimerspec()
        # Python has no timerfd before 3.13, so the C library is called.
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS) if self._libc is not None else -1
        if self._fd >= 0:
            loop.add_reader(self._fd, self._expired)

    def set(self, at_s: float) -> None:
        """Schedule the alarm for ``at_s``, replacing any earlier time."""
        if self._fd < 0:
            self.clear()
            self._timer = self._loop.call_later(max(0.0, at_s - time.monotonic()), self._ring)
            self.is_set = True
            return
        self.is_set = True
        # 0 would disarm the timer; a time in the past rings at once.
        seconds, nanoseconds = divmod(max(1, int(at_s * 1e9)), 1_000_000_000)
        self._arm(seconds, nanoseconds)

    def clear(self) -> None:
        """Cancel the alarm."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_set and self._fd >= 0:
            # A time of zero disarms the timer (timerfd_settime(2)).
            self._arm(0, 0)
        self.is_set = False

    def close(self) -> None:
        """Cancel the alarm and close its timer."""
        self.clear()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            # The event loop must not poll a descriptor that may be reused.
            os.close(self._fd)
            self._fd = -1

    def _arm(self, seconds: int, nanoseconds: int) -> None:
        assert self._libc is not None
        self._spec.value.seconds, self._spec.value.nanoseconds = seconds, nanoseconds
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(self._spec), None)

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set again after it expired
            return
        self.is_set = False
        self._ring()
