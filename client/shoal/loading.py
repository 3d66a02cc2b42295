"""Send the requests of a load test on schedule over persistent connections, and time them.

Uses asyncio's streams, because a full HTTP client takes a millisecond of a core per request and would limit most
measurements.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import httpx

from shoal.benching.steps import Outcome, Run
from shoal.wire.messages import Request
from shoal_schema.interfaces.headers import TIMEOUT_MS

MAX_IN_FLIGHT = 512
"""Concurrent requests; further scheduled ones count as unanswered, as for a client without a free port."""
ALONE_PAUSE_S = 0.02
"""Mean pause between requests on an idle server."""
_DURATION = re.compile(r"(queue|batch|runtime);dur=([0-9.]+)")
_ROWS = re.compile(r'rows;desc="([0-9]+)"')
_BROKEN = (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Load:
    """Load generator for one server; bound to one event loop."""

    url: httpx.URL
    request: Request
    timeout_s: float
    """Time for each request."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers in addition to the request's own."""
    context: ssl.SSLContext | None = None
    """TLS context; None for the public authorities."""
    _idle: list[Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        fields = {
            "host": self.url.netloc.decode(),
            **self.request.headers,
            **self.headers,
            "content-length": str(len(self.request.body)),
            TIMEOUT_MS: str(round(1000 * self.timeout_s)),
        }
        start = f"{self.request.method} {self.url.path.rstrip('/') + self.request.path} HTTP/1.1"
        lines = [start, *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        # The same bytes are sent each time.
        self._bytes = "\r\n".join(lines).encode() + self.request.body
        self._tls = (self.context or ssl.create_default_context()) if self.url.scheme == "https" else None

    async def alone(self, requests: int, seconds: float, random: Random) -> list[Outcome]:
        """Send requests one at a time, with short pauses, until ``requests`` or ``seconds`` is reached.

        Without pauses, the server's processes stay awake and respond faster than to occasional clients.
        """
        outcomes: list[Outcome] = []
        ends_s = time.monotonic() + seconds
        while len(outcomes) < requests and (not outcomes or time.monotonic() < ends_s):
            if outcomes:
                await asyncio.sleep(random.uniform(0.0, 2 * ALONE_PAUSE_S))
            began_s = time.monotonic()
            outcomes.append(await self._send(began_s, 0.0))
        return outcomes

    async def at(self, per_s: float, seconds: float, random: Random) -> Run:
        """Send ``per_s`` requests per second at random times, and return when all are answered or timed out."""
        began_s, busy_s = time.monotonic(), time.process_time()
        running: dict[asyncio.Task[Outcome], float] = {}
        outcomes: list[Outcome] = []
        # Uniform times are a Poisson process with a fixed count.
        for due_s in sorted(random.uniform(0.0, seconds) for _ in range(max(1, round(per_s * seconds)))):
            await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
            if len(running) >= MAX_IN_FLIGHT:
                # Checking every task takes time, so finished ones are collected only when the limit is reached.
                outcomes += [task.result() for task in running if task.done()]
                running = {task: due_s for task, due_s in running.items() if not task.done()}
            if len(running) < MAX_IN_FLIGHT:
                running[asyncio.create_task(self._send(began_s, due_s))] = due_s
            else:
                outcomes.append(_none(due_s, time.monotonic() - began_s))
            # The generator has fallen behind; more requests would measure only that.
            if time.monotonic() - began_s > seconds + 1:
                break
        spent_s = time.monotonic() - began_s
        busy = (time.process_time() - busy_s) / max(spent_s, seconds)
        if running:
            await asyncio.wait(running, timeout=self.timeout_s)
        for task, due_s in running.items():
            outcomes.append(task.result() if task.done() else _none(due_s, time.monotonic() - began_s))
            task.cancel()
        return Run(seconds, outcomes, busy)

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            _drop(self._idle.pop())

    async def _send(self, began_s: float, due_s: float) -> Outcome:
        sent_s = time.monotonic() - began_s
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                port = self.url.port or (443 if self._tls else 80)
                opened = self._idle.pop() if self._idle else None
                connection = opened or await asyncio.open_connection(self.url.host, port, ssl=self._tls)
                connection[1].write(self._bytes)
                status, timing, kept = await _read_response(connection[0])
        except (*_BROKEN, asyncio.CancelledError) as error:
            # A response may still arrive on it.
            if connection:
                _drop(connection)
            if isinstance(error, asyncio.CancelledError):
                raise
            return Outcome(due_s, sent_s, time.monotonic() - began_s, 0, {})
        if kept:
            self._idle.append(connection)
        else:
            _drop(connection)
        ended_s = time.monotonic() - began_s
        parts = {name: float(value) for name, value in _DURATION.findall(timing)}
        rows = _ROWS.search(timing)
        return Outcome(due_s, sent_s, ended_s, status, parts, int(rows[1]) if rows else None)


def _drop(connection: Connection) -> None:
    # Not `close`: with TLS it waits for the peer's close message, and the loop may end before.
    connection[1].transport.abort()


async def _read_response(reader: asyncio.StreamReader) -> tuple[int, str, bool]:
    """Read one response; return its status, its Server-Timing, and whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if fields.get("transfer-encoding", "").lower() == "chunked":
        # RFC 9112, section 7.1: chunks, then trailers up to an empty line.
        while length := int((await reader.readline()).split(b";")[0], 16):
            await reader.readexactly(length + 2)
        while (await reader.readline()).strip():
            pass
    else:
        await reader.readexactly(int(fields.get("content-length", "0")))
    kept = fields.get("connection", "").lower() != "close" and first.startswith("HTTP/1.1")
    return int(first.split(" ", 2)[1]), fields.get("server-timing", ""), kept


def _none(due_s: float, now_s: float) -> Outcome:
    """Return the outcome of a request without a response."""
    return Outcome(due_s, now_s, now_s, 0, {})
