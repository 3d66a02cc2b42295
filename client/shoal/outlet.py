"""Output that never blocks its writer: what is written waits for a reader in a bounded buffer."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable

HELD_BYTES = 1 << 20
"""What waits for a reader; a pipe of the kernel's holds 64 KiB more."""


def lines_lost(count: int) -> str:
    """Say that lines were dropped, as a line for people."""
    return f"shoal: {count} lines of output are missing here: nobody read them in time"


class Outlet:
    """An open file that is written by a thread of its own.

    A write to a pipe that is full stops whoever makes it, and no flag of ours could prevent it: a terminal or a pipe
    is shared with other programs, which would then see it too.

    Args:
        number: of the open file.
        lost: says how many lines were dropped, without the end of line.
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
        """Write whole lines as soon as somebody reads; drop them when too much waits already."""
        with self._changed:
            if self._gone or not text:
                return
            if len(text) > self._room_bytes:
                self._lines_dropped += max(1, text.count(b"\n"))
                return
            self._tell_of_dropped()
            self._add(text)

    def drain(self, patience_s: float) -> None:
        """Wait until all is written, at most so long."""
        ends_s = time.monotonic() + patience_s
        with self._changed:
            self._changed.wait_for(self._is_idle, patience_s)
            self._tell_of_dropped()
            self._changed.wait_for(self._is_idle, max(0.0, ends_s - time.monotonic()))

    def close(self, patience_s: float) -> None:
        """Wait until all is written, at most so long; nothing is written afterwards."""
        self.drain(patience_s)
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        return self._gone or not self._waiting

    def _tell_of_dropped(self) -> None:
        if self._lines_dropped:
            self._add(f"{self._lost(self._lines_dropped)}\n".encode())
            self._lines_dropped = 0

    def _add(self, text: bytes) -> None:
        self._room_bytes -= len(text)
        self._waiting.append(text)
        self._changed.notify_all()

    def _run(self) -> None:
        while text := self._next():
            try:
                while text:
                    text = text[os.write(self._number, text) :]
            except OSError:
                # Whoever read it has gone (`shoal serve | head`): no reason to stop serving.
                with self._changed:
                    self._gone = True
            self._written()

    def _next(self) -> bytes:
        """Return what is to be written next, once there is something; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._gone)
            return b"" if self._gone else self._waiting[0]

    def _written(self) -> None:
        with self._changed:
            self._room_bytes += len(self._waiting.popleft())
            self._changed.notify_all()
