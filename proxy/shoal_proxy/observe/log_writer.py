"""Log writing on a separate thread, so that slow log readers do not block."""

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shoal_proxy.observe.access_log import AccessLog, format_entry

INTERVAL_S: Final = 0.1
LAST_WORDS_S: Final = 2.0
"""Time limit for the last lines when the process ends."""
MAX_LINES: Final = 4096
"""Most waiting lines, without the access log's; further ones are dropped."""
_PATIENCE_S: Final = 1.0
_STDERR: Final = 2


class LogWriter(logging.Handler):
    """Log handler that writes to file descriptor ``number`` on a thread."""

    def __init__(self, log: AccessLog, formatter: logging.Formatter | None, number: int = _STDERR) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._log = log
        self._number = number
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._logged = 0
        """Dropped lines logged so far."""
        self._due = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Start the writing thread."""
        self._thread.start()

    def end(self) -> None:
        """Write the remaining lines within `LAST_WORDS_S`."""
        self._ends = True
        self._due.set()
        self._thread.join(LAST_WORDS_S)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a log line for the writing thread (logging)."""
        if len(self._lines) >= MAX_LINES:
            self._dropped += 1
            return
        try:
            # Formatted now, as arguments may change later.
            self._lines.append(self.format(record))
        except Exception:  # arguments that do not fit the template, as in `logging.Handler`
            self.handleError(record)
        self._due.set()

    def _run(self) -> None:
        ends = False
        while not ends:
            self._due.wait(INTERVAL_S)
            self._due.clear()
            ends = self._ends
            while self._lines:
                self._write(self._lines.popleft())
            for entry in self._log.take():
                template, arguments = format_entry(entry)
                record = _record("shoal_proxy.observe.access_log", logging.INFO, template, arguments)
                # The record's time is the end of the request, not of the writing.
                record.created -= time.monotonic() - entry.ended_s
                record.msecs = record.created % 1 * 1000
                self._write(self.format(record))
            if (dropped := self._dropped + self._log.dropped) > self._logged:
                new = (dropped - self._logged,)
                self._logged = dropped
                self._write(self.format(_record(__name__, logging.WARNING, "event=log_lines_dropped count=%d", new)))

    def _write(self, line: str) -> None:
        """Write a line, and block while the log's reader is slow.

        `sys.stderr` would block other threads by its lock.
        """
        left = f"{line}\n".encode(errors="backslashreplace")
        while left:
            try:
                # A pipe may accept a part only.
                left = left[os.write(self._number, left) :]
            except BlockingIOError:
                select.select([], [self._number], [], _PATIENCE_S)
            except OSError:  # the reader has closed its end
                return


def _record(name: str, level: int, template: str, arguments: tuple[object, ...]) -> logging.LogRecord:
    fields = {"levelno": level, "levelname": logging.getLevelName(level), "msg": template, "args": arguments}
    return logging.makeLogRecord({"name": name, **fields})


@contextmanager
def writing(log: AccessLog | None) -> Iterator[None]:
    """Write log lines on a separate thread within this context.

    Without an access log nothing changes.
    """
    root = logging.getLogger()
    if log is None or not root.handlers:
        yield
        return
    before = root.handlers[:]
    writer = LogWriter(log, before[0].formatter)
    writer.start()
    # The list is changed in place, so that it is the same for all threads.
    root.handlers[:] = [writer]
    try:
        yield
    finally:
        writer.end()
        root.handlers[:] = before
