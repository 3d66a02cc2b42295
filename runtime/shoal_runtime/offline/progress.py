"""Progress of a batch job: counted, displayed, served over HTTP, and summarized at the end."""

import logging
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec

from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.interfaces.progress import JobProgress, WorkDone

LINE_EVERY_S: Final = 10.0
SHOWN_EVERY_S: Final = 0.2
SHOWN_ERRORS: Final = 5

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class JobTally:
    """Counts of a job's shards, rows, bytes and errors so far."""

    shards_total: int = 0
    bytes_total: int = 0
    shards_done: int = 0
    bytes_done: int = 0
    bytes_under_way: float = 0.0
    rows: int = 0
    failed: int = 0
    before: WorkDone = field(default_factory=WorkDone)
    """By other runs of the job with the same output."""
    resumed: WorkDone = field(default_factory=WorkDone)
    """By this worker of this run, in a process that ended."""
    siblings: WorkDone = field(default_factory=WorkDone)
    """By other workers of this run."""
    broken: list[str] = field(default_factory=list)
    """Errors of shards that cannot be read or written."""
    errors: Counter[str] = field(default_factory=Counter)
    """Errors of rows."""
    begun_s: float | None = None

    def add(self, rows: int, errors: Collection[str], share_bytes: float) -> None:
        """Count rows that have a result or an error.

        ``share_bytes`` is the part of the shard's bytes that these rows represent.
        """
        self.bytes_under_way += share_bytes
        self.rows += rows
        self.failed += len(errors)
        self.errors.update(errors)

    @property
    def share(self) -> float:
        """Return the finished part of the input, 0 to 1."""
        return min(1.0, (self.bytes_done + self.bytes_under_way + self.found.bytes) / max(self.bytes_total, 1))

    @property
    def found(self) -> WorkDone:
        """Return the work that other runs, processes or workers had finished."""
        return self.before + self.resumed + self.siblings

    def rate(self, now_s: float) -> float:
        """Return this process's rows per second since scoring began."""
        return self.rows / max(now_s - self.begun_s, 1e-9) if self.begun_s is not None and self.rows else 0.0

    def encoded(self, now_s: float, message: str = "") -> bytes:
        """Return the tally as JSON, with a message for the job's status."""
        done = WorkDone(self.shards_done, self.rows, self.failed, self.bytes_done)
        progress = JobProgress(
            shards_total=self.shards_total,
            bytes_total=self.bytes_total,
            before=self.before,
            own=self.resumed + done,
            rows_per_second=round(self.rate(now_s), 1),
            message=message,
        )
        return msgspec.json.encode(progress)


class ProgressDisplay:
    """Display of a job's progress: a bar on a terminal, else a line every 10 s.

    The line is logged if INFO is enabled, else written to standard error.
    """

    def __init__(self, tally: JobTally) -> None:
        self._tally = tally
        self._bar: Any = None
        self._next_s = time.monotonic() + LINE_EVERY_S
        # Logs of pods would be filled by the frames of a bar.
        if sys.stderr.isatty():
            from tqdm import tqdm  # noqa: PLC0415 (pods have no terminal)

            shape = "{l_bar}{bar}| [{elapsed}<{remaining}{postfix}]"
            self._bar = tqdm(total=1.0, initial=tally.share, bar_format=shape, desc="scoring")
            self._next_s = 0.0

    def update(self) -> None:
        """Show the current counts, if the last display is old enough."""
        tally, now_s = self._tally, time.monotonic()
        text = f"{tally.rows:,} rows, {tally.rate(now_s):,.0f} rows/s, {tally.failed:,} failed"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.n = tally.share
            # The terminal is written at most every 0.2 s.
            if now_s >= self._next_s:
                self._bar.refresh()
                self._next_s = now_s + SHOWN_EVERY_S
        elif now_s >= self._next_s:
            self._next_s = now_s + LINE_EVERY_S
            if logger.isEnabledFor(logging.INFO):
                done = tally.shards_done + tally.found.shards
                logger.info("event=progress shards=%d/%d what=%s", done, tally.shards_total, text)
            else:
                sys.stderr.write(f"scoring: {tally.share:.0%}, {text}\n")

    def close(self) -> None:
        """Complete the progress bar on a terminal."""
        if self._bar is not None:
            self.update()
            self._bar.close()


def summary(tally: JobTally, output: str, batch_size: int, now_s: float) -> str:
    """Return the table that is printed at the end of a job."""
    # Without the time to load the model.
    seconds = now_s - tally.begun_s if tally.begun_s is not None else 0.0
    found = tally.found
    rows = [
        ("rows", f"{tally.rows + found.rows:,}" + (f" ({found.rows:,} before)" if found.rows else "")),
        ("failed", f"{tally.failed + found.failed_rows:,}"),
        ("shards", f"{tally.shards_done + found.shards:,} of {tally.shards_total:,}"),
        ("rows/s", f"{tally.rate(now_s):,.0f}" if tally.rows else "-"),
        ("seconds", f"{seconds:,.1f}"),
        ("batch size", str(batch_size)),
        ("results", output),
    ]
    lines = [f"{name:<11} {value}" for name, value in rows]
    if tally.errors:
        more = tally.errors.total() - sum(count for _, count in tally.errors.most_common(SHOWN_ERRORS))
        shown = [*most_frequent(tally.errors), *([f"... and {more:,} rows with other errors"] if more else [])]
        lines += ["", "errors of failed rows:", *(f"  {each}" for each in shown)]
    return "\n".join(lines)


def most_frequent(errors: Counter[str], most: int = SHOWN_ERRORS) -> Sequence[str]:
    """Return the most frequent error messages with their counts."""
    return [f"{message} ({count:,})" if count > 1 else message for message, count in errors.most_common(most)]


def serve_progress(address: TcpAddress, tally: JobTally) -> int:
    """Serve `GET /v1/progress` from a thread until the process ends; return the port."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            found = self.path == "/v1/progress"
            body = tally.encoded(time.monotonic()) if found else b'{"error":"the only path is /v1/progress"}'
            self.send_response(200 if found else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write no access log."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET

    server = Server((address.host, address.port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="progress", daemon=True).start()
    return int(server.server_port)
