"""Writes the log from a thread of its own, where there is so much of it that a slow reader would hold up requests."""

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shoal_proxy.access_log import AccessLog, Entry, line_of

INTERVAL_S: Final = 0.1
LAST_WORDS_S: Final = 2.0
"""For what is left when the process ends."""
MOST_LINES: Final = 4096
"""Of all but the access log that wait; more are not kept."""
_PATIENCE_S: Final = 1.0
_STDERR: Final = 2


class LogWriter(logging.Handler):
    """Takes the place of the handler that would block. ``number`` is of the open file."""

    def __init__(self, log: AccessLog, formatter: logging.Formatter | None, number: int = _STDERR) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._log = log
        self._number = number
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._told = 0
        self._due = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def end(self) -> None:
        """Write what is left, for a while."""
        self._ends = True
        self._due.set()
        self._thread.join(LAST_WORDS_S)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line for the thread (logging)."""
        if len(self._lines) >= MOST_LINES:
            self._dropped += 1
            return
        try:
            self._lines.append(self.format(record))
        except Exception:  # of arguments that do not fit, as every handler has it
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
                self._write(self.format(_record(entry)))
            self._tell_of_dropped()

    def _tell_of_dropped(self) -> None:
        if (dropped := self._dropped + self._log.dropped) > self._told:
            fields = {"msg": "event=log_lines_dropped count=%d", "args": (dropped - self._told,)}
            self._told = dropped
            self._write(self.format(logging.makeLogRecord({"name": __name__, **_at(logging.WARNING), **fields})))

    def _write(self, line: str) -> None:
        """Write a line, however long nobody reads it. Not through `sys.stderr`, whose lock others would wait for."""
        left = f"{line}\n".encode(errors="backslashreplace")
        while left:
            try:
                left = left[os.write(self._number, left) :]
            except BlockingIOError:
                select.select([], [self._number], [], _PATIENCE_S)
            except OSError:  # nobody will ever read it
                return


def _at(level: int) -> dict[str, object]:
    return {"levelno": level, "levelname": logging.getLevelName(level)}


def _record(entry: Entry) -> logging.LogRecord:
    template, arguments = line_of(entry)
    fields = {"name": "shoal_proxy.access_log", **_at(logging.INFO), "msg": template, "args": arguments}
    record = logging.makeLogRecord(fields)
    record.created -= time.monotonic() - entry.ended_s
    record.msecs = record.created % 1 * 1000
    return record


@contextmanager
def writing(log: AccessLog | None) -> Iterator[None]:
    """Write all of the log from a thread meanwhile, if there is an access log in it."""
    root = logging.getLogger()
    if log is None or not root.handlers:
        yield
        return
    before = root.handlers[:]
    writer = LogWriter(log, before[0].formatter)
    writer.start()
    root.handlers[:] = [writer]
    try:
        yield
    finally:
        writer.end()
        root.handlers[:] = before
