"""An open load on one server: requests leave when they are due, on kept connections, and are timed.

Written on asyncio's streams, because a full HTTP client takes a millisecond of a core per request, and would be the
bound of most measurements.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import httpx

from shoal.benching.steps import Answer, Run
from shoal.wire.messages import Request
from shoal_schema.headers import TIMEOUT_MS

MAX_IN_FLIGHT = 512
"""Requests on their way; one that is due beyond them has no answer, as a caller would have none that finds no port."""
ALONE_PAUSE_S = 0.02
_DURATION = re.compile(r"(queue|batch|runtime);dur=([0-9.]+)")
_ROWS = re.compile(r'rows;desc="([0-9]+)"')
_BROKEN = (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Load:
    """The load on one server; use it within one event loop.

    Args:
        url: the server's.
        request: is sent each time.
        timeout_s: how long each may take.
        headers: sent beside the request's own.
        context: whom to trust, of a server that speaks TLS; None: the web's authorities.
    """

    url: httpx.URL
    request: Request
    timeout_s: float
    headers: Mapping[str, str] = field(default_factory=dict)
    context: ssl.SSLContext | None = None
    _idle: list[Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bytes = _encoded(self.url, self.request, self.timeout_s, self.headers)
        self._tls = (self.context or ssl.create_default_context()) if self.url.scheme == "https" else None

    async def alone(self, requests: int, seconds: float, random: Random) -> list[Answer]:
        """Ask one request after another, so many or so long, with short pauses between them.

        Without pauses all processes stay awake, and answer sooner than anybody who comes now and then would see.
        """
        answers: list[Answer] = []
        ends_s = time.monotonic() + seconds
        while len(answers) < requests and (not answers or time.monotonic() < ends_s):
            if answers:
                await asyncio.sleep(random.uniform(0.0, 2 * ALONE_PAUSE_S))
            began_s = time.monotonic()
            answers.append(await self._ask(began_s, 0.0))
        return answers

    async def at(self, per_s: float, seconds: float, random: Random) -> Run:
        """Send at random moments, ``per_s`` of them each second in all, and return what came of it.

        It ends when what was sent is answered, or has had as long as it may take.
        """
        began_s, busy_s = time.monotonic(), time.process_time()
        running: dict[asyncio.Task[Answer], float] = {}
        answers: list[Answer] = []
        # That many moments, each anywhere, are as random as people are; only how many there are is not left to chance.
        for due_s in sorted(random.uniform(0.0, seconds) for _ in range(max(1, round(per_s * seconds)))):
            await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
            running = self._reap(running, answers)
            if len(running) < MAX_IN_FLIGHT:
                running[asyncio.create_task(self._ask(began_s, due_s))] = due_s
            else:
                answers.append(_none(due_s, time.monotonic() - began_s))
            if time.monotonic() - began_s > seconds + 1:
                break
        spent_s = time.monotonic() - began_s
        busy = (time.process_time() - busy_s) / max(spent_s, seconds)
        if running:
            await asyncio.wait(running, timeout=self.timeout_s)
        for task, due_s in running.items():
            answers.append(task.result() if task.done() else _none(due_s, time.monotonic() - began_s))
            task.cancel()
        return Run(seconds, answers, busy)

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            _drop(self._idle.pop())

    def _reap(
        self, running: dict[asyncio.Task[Answer], float], answers: list[Answer]
    ) -> dict[asyncio.Task[Answer], float]:
        """Move what has ended to the answers; only when many run, since looking at each takes time."""
        if len(running) < MAX_IN_FLIGHT:
            return running
        answers += [task.result() for task in running if task.done()]
        return {task: due_s for task, due_s in running.items() if not task.done()}

    async def _ask(self, began_s: float, due_s: float) -> Answer:
        sent_s = time.monotonic() - began_s
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                port = self.url.port or (443 if self._tls else 80)
                opened = self._idle.pop() if self._idle else None
                connection = opened or await asyncio.open_connection(self.url.host, port, ssl=self._tls)
                connection[1].write(self._bytes)
                status, timing, kept = await _answer(connection[0])
        except (*_BROKEN, asyncio.CancelledError) as error:
            if connection:
                _drop(connection)
            if isinstance(error, asyncio.CancelledError):
                raise
            return Answer(due_s, sent_s, time.monotonic() - began_s, 0, {})
        if kept:
            self._idle.append(connection)
        else:
            _drop(connection)
        return _timed(due_s, sent_s, time.monotonic() - began_s, status, timing)


def _drop(connection: Connection) -> None:
    connection[1].transport.abort()  # with TLS, `close` waits for the other side to say goodbye, and the loop may end


async def _answer(reader: asyncio.StreamReader) -> tuple[int, str, bool]:
    """Read one answer to its end; return its status, its Server-Timing, and whether the connection stays."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if fields.get("transfer-encoding", "").lower() == "chunked":
        while length := int((await reader.readline()).split(b";")[0], 16):
            await reader.readexactly(length + 2)
        while (await reader.readline()).strip():
            pass
    else:
        await reader.readexactly(int(fields.get("content-length", "0")))
    kept = fields.get("connection", "").lower() != "close" and first.startswith("HTTP/1.1")
    return int(first.split(" ", 2)[1]), fields.get("server-timing", ""), kept


def _timed(due_s: float, sent_s: float, ended_s: float, status: int, timing: str) -> Answer:
    parts = {name: float(value) for name, value in _DURATION.findall(timing)}
    rows = _ROWS.search(timing)
    return Answer(due_s, sent_s, ended_s, status, parts, int(rows[1]) if rows else None)


def _none(due_s: float, now_s: float) -> Answer:
    return Answer(due_s, now_s, now_s, 0, {})


def _encoded(url: httpx.URL, request: Request, timeout_s: float, headers: Mapping[str, str]) -> bytes:
    path = url.path.rstrip("/") + request.path
    fields = {
        "host": url.netloc.decode(),
        **request.headers,
        **headers,
        "content-length": str(len(request.body)),
        TIMEOUT_MS: str(round(1000 * timeout_s)),
    }
    lines = [f"{request.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + request.body
