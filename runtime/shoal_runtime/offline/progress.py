"""How far a job is: counted as it goes, shown on a terminal, told to whoever asks, and in a table at its end."""

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

from shoal_schema.addresses import TcpAddress
from shoal_schema.progress import Done, Progress

LINE_EVERY_S: Final = 10.0
SHOWN_EVERY_S: Final = 0.2
SHOWN_ERRORS: Final = 5

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What was done so far.

    Attributes:
        before: by other runs of the job, with the same output.
        resumed: by this worker of this run, in a process that ended.
        siblings: by other workers of this run.
        errors: the first of the reasons.
    """

    shards_total: int = 0
    bytes_total: int = 0
    shards_done: int = 0
    bytes_done: int = 0
    bytes_under_way: float = 0.0
    rows: int = 0
    failed: int = 0
    before: Done = field(default_factory=Done)
    resumed: Done = field(default_factory=Done)
    siblings: Done = field(default_factory=Done)
    broken: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    begun_s: float | None = None

    def add(self, rows: int, errors: Collection[str], share_bytes: float) -> None:
        """Count rows that have an answer or an error, and what part of their shard they are."""
        self.bytes_under_way += share_bytes
        self.rows += rows
        self.failed += len(errors)
        self.errors.update(errors)

    @property
    def share(self) -> float:
        """Return how much of the input is done, of 1."""
        return min(1.0, (self.bytes_done + self.bytes_under_way + self.found.bytes) / max(self.bytes_total, 1))

    @property
    def found(self) -> Done:
        """Return what was done already."""
        return self.before + self.resumed + self.siblings

    def rate(self, now_s: float) -> float:
        """Return rows per second since the first of them."""
        return self.rows / max(now_s - self.begun_s, 1e-9) if self.begun_s is not None and self.rows else 0.0

    def encoded(self, now_s: float, message: str = "") -> bytes:
        """Return it as JSON."""
        done = Done(self.shards_done, self.rows, self.failed, self.bytes_done)
        told = Progress(
            shards_total=self.shards_total,
            bytes_total=self.bytes_total,
            before=self.before,
            own=self.resumed + done,
            rows_per_second=round(self.rate(now_s), 1),
            message=message,
        )
        return msgspec.json.encode(told)


class Shown:
    """The tally on a terminal, as a bar; elsewhere as a line now and then, of the log where it tells of such things."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._bar: Any = None
        self._next_s = time.monotonic() + LINE_EVERY_S
        if sys.stderr.isatty():
            from tqdm import tqdm  # noqa: PLC0415 (pods have no terminal)

            shape = "{l_bar}{bar}| [{elapsed}<{remaining}{postfix}]"
            self._bar = tqdm(total=1.0, initial=tally.share, bar_format=shape, desc="scoring")
            self._next_s = 0.0

    def update(self) -> None:
        """Show what has changed."""
        tally, now_s = self._tally, time.monotonic()
        text = f"{tally.rows:,} rows, {tally.rate(now_s):,.0f} rows/s, {tally.failed:,} failed"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.n = tally.share
            self._bar.refresh() if now_s >= self._next_s else None
            self._next_s = now_s + SHOWN_EVERY_S if now_s >= self._next_s else self._next_s
        elif now_s >= self._next_s:
            self._next_s = now_s + LINE_EVERY_S
            if logger.isEnabledFor(logging.INFO):
                done = tally.shards_done + tally.found.shards
                logger.info("event=progress shards=%d/%d what=%s", done, tally.shards_total, text)
            else:
                sys.stderr.write(f"scoring: {tally.share:.0%}, {text}\n")

    def close(self) -> None:
        """Leave the terminal as it is."""
        if self._bar is not None:
            self.update()
            self._bar.close()


def summary(tally: Tally, output: str, batch_size: int, now_s: float) -> str:
    """Return what a person wants to know at the end, as a table."""
    seconds = now_s - tally.begun_s if tally.begun_s is not None else 0.0
    found = tally.found
    rows = [
        ("rows", f"{tally.rows + found.rows:,}" + (f" ({found.rows:,} before)" if found.rows else "")),
        ("failed", f"{tally.failed + found.failed_rows:,}"),
        ("shards", f"{tally.shards_done + found.shards:,} of {tally.shards_total:,}"),
        ("rows/s", f"{tally.rate(now_s):,.0f}" if tally.rows else "-"),
        ("seconds", f"{seconds:,.1f}"),
        ("batch size", str(batch_size)),
        ("answers", output),
    ]
    lines = [f"{name:<11} {value}" for name, value in rows]
    if tally.errors:
        more = tally.errors.total() - sum(count for _, count in tally.errors.most_common(SHOWN_ERRORS))
        said = [*first(tally.errors), *([f"... and {more:,} more say otherwise"] if more else [])]
        lines += ["", "the rows that failed say:", *(f"  {each}" for each in said)]
    return "\n".join(lines)


def first(errors: Counter[str], most: int = SHOWN_ERRORS) -> Sequence[str]:
    """Return the most frequent of the reasons, each with how often it was seen."""
    return [f"{said} ({count:,})" if count > 1 else said for said, count in errors.most_common(most)]


def listen(address: TcpAddress, tally: Tally) -> int:
    """Answer `GET /v1/progress` from a thread of its own, as long as the process lives; return the port."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            known = self.path == "/v1/progress"
            body = tally.encoded(time.monotonic()) if known else b'{"error":"there is only /v1/progress"}'
            self.send_response(200 if known else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write nothing for each question."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET

    server = Server((address.host, address.port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="progress", daemon=True).start()
    return int(server.server_port)
