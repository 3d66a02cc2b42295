"""Watchdog that ends the process when the device does not respond.

A separate thread checks the executor, without the event loop or the device's thread. If a kernel never releases the
GIL, this thread cannot run. Then the standard library's faulthandler, which needs no lock, ends the process later.
"""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from shoal_runtime.errors import EXIT_DEVICE_LOST
from shoal_runtime.execution.executor import Executor
from shoal_runtime.readiness import Readiness
from shoal_schema.process.logs import final_line

ANSWER_S: Final = 0.5
"""Time for the event loop to send errors to clients."""
LOCK_HELD_AFTER_S: Final = 30.0
"""Seconds after the limit when faulthandler ends the process."""
MAX_TICK_S: Final = 1.0


def exit_now(message: str, code: int = EXIT_DEVICE_LOST) -> None:
    """End the process with a log line, without destructors, because a thread is stuck."""
    try:
        sys.stderr.flush()
        os.write(2, final_line("shoal_runtime", message).encode(errors="backslashreplace"))
    finally:
        os._exit(code)


class Watchdog:
    """Thread that ends the process when the device or a required thread is lost.

    Args:
        executor: executor to watch.
        readiness: set to lost before the process ends.
        limit_s: time limit of a forward.
        end: function that is called once, with the last log line.
    """

    def __init__(
        self, executor: Executor, readiness: Readiness, *, limit_s: float, end: Callable[[str], None] = exit_now
    ) -> None:
        self._executor = executor
        self._readiness = readiness
        self.limit_s = limit_s
        self._end = end
        self._wake = threading.Event()
        self._reason: str | None = None
        self._stopped = False
        self._enlisted: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        executor.on_death = self.lose

    def start(self) -> None:
        """Start the watchdog's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the watchdog's thread."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def lose(self, reason: str) -> None:
        """Mark the device as lost, which ends the process shortly after. Thread-safe."""
        self._readiness.lost(reason)
        self._reason = self._reason or reason
        self._wake.set()

    def enlist(self) -> None:
        """Add the current thread to the required threads."""
        self._enlisted.append(threading.current_thread())

    def ended(self) -> str | None:
        """Return an error message if a required thread has ended, or None."""
        for thread in tuple(self._enlisted):
            if not thread.is_alive():
                return f"the thread {thread.name} ended; the log above has the reason"
        return None

    def overdue(self, now_s: float) -> str | None:
        """Return an error message if a forward exceeds its time limit at ``now_s``, or None."""
        since_s = self._executor.busy_since_s
        if since_s is None or now_s - since_s <= self.limit_s:
            return None
        return f"a forward runs longer than {self.limit_s:g} s (SHOAL_RUNTIME_FORWARD_TIMEOUT_S)"

    def _run(self) -> None:
        tick_s = min(MAX_TICK_S, self.limit_s / 4)
        while not self._stopped and self._reason is None:
            # Armed again on each tick: it fires only if this thread cannot run.
            faulthandler.dump_traceback_later(self.limit_s + LOCK_HELD_AFTER_S, exit=True)
            self._wake.wait(tick_s)
            if self._reason is None and (reason := self.overdue(time.monotonic()) or self.ended()):
                self.lose(reason)
        faulthandler.cancel_dump_traceback_later()
        if self._reason is not None and not self._stopped:
            try:
                self._executor.abandon(self._reason)
                # The event loop sends the errors meanwhile.
                time.sleep(ANSWER_S)
            finally:
                self._end(f"the runtime cannot continue: {self._reason}")
