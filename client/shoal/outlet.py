"""Output that never blocks the caller: a thread writes from a bounded buffer."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable

HELD_BYTES = 1 << 20
"""Size of the buffer; the kernel's pipe holds 64 KiB more."""


def lines_lost(count: int) -> str:
    """Return the message that replaces ``count`` dropped lines."""
    return f"shoal: {count} lines of output were dropped here because they were not read in time"


class Outlet:
    """Buffered output to a file descriptor, written by a separate thread.

    A write to a full pipe blocks. O_NONBLOCK is no remedy: the flag would also affect the other programs that share the
    terminal or pipe.

    Args:
        number: the file descriptor.
        lost: returns the line that reports the given number of dropped lines, without the line end.
    """

    def __init__(self, number: int, *, held_bytes: int = HELD_BYTES, lost: Callable[[int], str] = lines_lost) -> None:
        self._number = number
        self._room_bytes = held_bytes
        self._lost = lost
        self._waiting: deque[bytes] = deque()
        self._lines_dropped = 0
        self._gone = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"output {number}", daemon=True)
        self._thread.start()

    def write(self, text: bytes) -> None:
        """Queue ``text``, which consists of whole lines; drop it if the buffer is full."""
        with self._changed:
            if self._gone or not text:
                return
            # Lines are dropped whole, and counted.
            if len(text) > self._room_bytes:
                self._lines_dropped += max(1, text.count(b"\n"))
                return
            self._report_dropped()
            self._add(text)

    def drain(self, timeout_s: float) -> None:
        """Wait until all queued lines are written, at most ``timeout_s``."""
        ends_s = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(self._is_idle, timeout_s)
            self._report_dropped()
            self._changed.wait_for(self._is_idle, max(0.0, ends_s - time.monotonic()))

    def close(self, timeout_s: float) -> None:
        """Wait until all queued lines are written, at most ``timeout_s``, and discard later writes."""
        self.drain(timeout_s)
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        return self._gone or not self._waiting

    def _report_dropped(self) -> None:
        if self._lines_dropped:
            self._add(f"{self._lost(self._lines_dropped)}\n".encode())
            self._lines_dropped = 0

    def _add(self, text: bytes) -> None:
        self._room_bytes -= len(text)
        self._waiting.append(text)
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._gone)
                if self._gone:
                    return
                text = self._waiting[0]
            gone = False
            try:
                # Outside the lock: a write may block for as long as the reader likes.
                while text:
                    text = text[os.write(self._number, text) :]
            except OSError:
                # The reader has closed the pipe (`shoal serve | head`), which is no reason to stop serving.
                gone = True
            with self._changed:
                self._gone = self._gone or gone
                self._room_bytes += len(self._waiting.popleft())
                self._changed.notify_all()
