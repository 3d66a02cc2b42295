"""Send the requests of a load test on schedule over persistent connections, and time them.

Uses the same client connection as the proxy, because a full HTTP client takes a millisecond of a core per request and
would limit most measurements.
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
from shoal_schema.http.client_connection import READ_BYTES, ClientConnection, InvalidResponseError
from shoal_schema.interfaces.headers import TIMEOUT_MS

MAX_IN_FLIGHT = 512
"""Concurrent requests; further scheduled ones count as unanswered, as for a client without a free port."""
ALONE_PAUSE_S = 0.02
"""Mean pause between requests on an idle server."""
_DURATION = re.compile(r"(queue|batch|runtime);dur=([0-9.]+)")
_ROWS = re.compile(r'rows;desc="([0-9]+)"')
_MAX_HEAD_BYTES = 65536


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
    _idle: list[ClientConnection] = field(default_factory=list)

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
        self._scratch = memoryview(bytearray(READ_BYTES))
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
            self._idle.pop().close()

    async def _send(self, began_s: float, due_s: float) -> Outcome:
        sent_s = time.monotonic() - began_s
        connection: ClientConnection | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                while connection is None and self._idle:
                    last = self._idle.pop()
                    connection = last if last.usable else None
                connection = connection or await self._connect()
                response = await connection.send([self._bytes])
        except (OSError, ValueError, InvalidResponseError, asyncio.CancelledError) as error:
            # A response may still arrive on it.
            if connection:
                connection.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            return Outcome(due_s, sent_s, time.monotonic() - began_s, 0, {})
        if connection.usable:
            self._idle.append(connection)
        ended_s = time.monotonic() - began_s
        timing = response.headers.get(b"server-timing", b"").decode("latin-1")
        parts = {name: float(value) for name, value in _DURATION.findall(timing)}
        rows = _ROWS.search(timing)
        return Outcome(due_s, sent_s, ended_s, response.status, parts, int(rows[1]) if rows else None)

    async def _connect(self) -> ClientConnection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(self._scratch, _MAX_HEAD_BYTES),
            self.url.host,
            self.url.port or (443 if self._tls else 80),
            ssl=self._tls,
        )
        return connection


def _none(due_s: float, now_s: float) -> Outcome:
    """Return the outcome of a request without a response."""
    return Outcome(due_s, now_s, now_s, 0, {})
