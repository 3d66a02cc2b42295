"""Send requests when they are due, whether or not earlier ones are answered: ``python -m benchmarks.peers.open_loop``.

Reads a `PoissonLoad` as JSON from standard input, and writes `Sent` as JSON to standard output. It is a
process of its own, so that its timing is not the benchmark's. Each request in flight has a
connection to itself; connections are kept and used again, the latest first.
"""

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from math import ceil
from random import Random
from typing import cast

import httptools
import uvloop

from benchmarks.peers.arrivals import poisson
from benchmarks.peers.outcomes import BROKEN, TIMED_OUT, Outcome

SWEEP_S = 0.05
START_S = 0.2


@dataclass(frozen=True, slots=True)
class PoissonLoad:
    """What to send.

    Args:
        port: of 127.0.0.1.
        path: to POST to.
        bodies: JSON texts, sent in turn.
        rate_per_s, duration_s, seed: of the Poisson arrivals.
        patience_s: an answer later than this is not waited for.
        max_connections: requests beyond them wait for one, with their clocks running.
    """

    port: int
    path: str
    bodies: Sequence[str]
    rate_per_s: float
    duration_s: float
    seed: int
    patience_s: float = 5.0
    max_connections: int = 4096


@dataclass(frozen=True, slots=True)
class Sent:
    """What happened: one outcome per arrival, the sender's share of a core, connections it opened."""

    outcomes: Sequence[Outcome]
    cpu_share: float
    connections: int


def send(load: PoissonLoad) -> Sent:
    """Run a load in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-m", __spec__.name],
        input=json.dumps(asdict(load)),
        capture_output=True,
        text=True,
        timeout=load.duration_s + load.patience_s + 30,
        check=True,
    )
    result = json.loads(process.stdout)
    outcomes = [Outcome(*values) for values in result["outcomes"]]
    return Sent(outcomes, result["cpu_share"], result["connections"])


@dataclass(slots=True, eq=False)
class Request:
    """One request: when it was due and sent (monotonic clock), and what came of it."""

    soft_deadline_s: float
    sent_s: float = 0.0
    done_s: float = 0.0
    status: int | None = None
    connection: "Connection | None" = None

    def end(self, status: int) -> None:
        """Note the outcome."""
        self.status, self.done_s, self.connection = status, time.monotonic(), None

    def outcome(self) -> Outcome:
        """Return the outcome; a request never sent lagged for as long as it was waited for."""
        status = TIMED_OUT if self.status is None else self.status
        return Outcome(status, self.done_s - self.soft_deadline_s, (self.sent_s or self.done_s) - self.soft_deadline_s)


class Connection(asyncio.Protocol):
    """A kept connection, with at most one request in flight."""

    def __init__(self, sender: "Sender") -> None:
        self._sender = sender
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None
        self._heard = False
        self._answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the first request that waits."""
        self._transport = cast(asyncio.Transport, transport)
        self._sender.ready(self)

    def post(self, request: Request) -> None:
        """Send a request."""
        assert self._transport is not None
        self._request, self._heard, request.connection = request, False, self
        request.sent_s = request.sent_s or time.monotonic()
        self._transport.write(self._sender.next_request())

    def data_received(self, data: bytes) -> None:
        """Read an answer."""
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_message_complete(self) -> None:
        """End the request; keep the connection if the server does."""
        request, self._request = self._request, None
        self._answers += 1
        if request is not None:
            request.end(self._parser.get_status_code())
        keep = self._parser.should_keep_alive()
        self._parser = httptools.HttpResponseParser(self)
        if keep:
            self._sender.ready(self)
        else:
            self.close()

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request; one that met a connection closed for idleness is sent again."""
        request, self._request = self._request, None
        self._sender.lost(self)
        if request is None or request.status is not None:
            return
        if self._heard or self._answers == 0:
            request.end(BROKEN)
        else:
            self._sender.post_anew(request)


@dataclass(slots=True, eq=False)
class Sender:
    """All connections, and the requests that wait for one."""

    load: PoissonLoad
    _posts: Iterator[bytes]
    requests: list[Request] = field(default_factory=list)
    opened: int = 0
    _all_sent: bool = False
    _open: int = 0
    _idle: dict[Connection, None] = field(default_factory=dict)
    _waiting: deque[Request] = field(default_factory=deque)
    _opening: set[asyncio.Task[None]] = field(default_factory=set)

    def next_request(self) -> bytes:
        """Return the bytes of the next request."""
        return next(self._posts)

    def post(self, request: Request) -> None:
        """Send a request over an idle connection, else over a new one."""
        if self._idle:
            self._idle.popitem()[0].post(request)
        else:
            self.post_anew(request)

    def post_anew(self, request: Request) -> None:
        """Send a request over a new connection, or over the first that becomes idle."""
        self._waiting.append(request)
        self._open_another()

    def _open_another(self) -> None:
        if self._open < self.load.max_connections:
            self._open += 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.load.port)
        except OSError:
            self._open -= 1
            if self._waiting:
                self._waiting.popleft().end(BROKEN)
        else:
            self.opened += 1

    def ready(self, connection: Connection) -> None:
        """Give a connection the request that waits longest, or keep it for later."""
        while self._waiting:
            request = self._waiting.popleft()
            if request.status is None:
                connection.post(request)
                return
        self._idle[connection] = None

    def lost(self, connection: Connection) -> None:
        """Forget a connection; a request that waits gets another."""
        self._open -= 1
        self._idle.pop(connection, None)
        if self._waiting:
            self._open_another()

    async def run(self, soft_deadline_s: Sequence[float]) -> None:
        """Send each request when it is due; return when all have ended."""
        sweeping = asyncio.create_task(self._sweep())
        for each in soft_deadline_s:
            # The loop's timers count whole milliseconds; rounding up never sends early.
            if (wait_s := each - time.monotonic()) > 0:
                await asyncio.sleep(ceil(wait_s * 1000) / 1000)
            request = Request(each)
            self.requests.append(request)
            self.post(request)
        self._all_sent = True
        await sweeping

    async def _sweep(self) -> None:
        """Give up requests older than the client's patience; return when all are sent and have ended."""
        first = 0
        while not (self._all_sent and first == len(self.requests)):
            limit_s = time.monotonic() - self.load.patience_s
            while first < len(self.requests) and self._is_over(self.requests[first], limit_s):
                first += 1
            await asyncio.sleep(SWEEP_S)

    def _is_over(self, request: Request, limit_s: float) -> bool:
        if request.status is None and request.soft_deadline_s < limit_s:
            self._give_up(request)
        return request.status is not None

    def _give_up(self, request: Request) -> None:
        connection = request.connection
        request.end(TIMED_OUT)
        if connection is not None:
            connection.close()


def posts(load: PoissonLoad) -> Iterator[bytes]:
    """Yield requests as they go over the wire, each with an id and a trace of its own."""
    random = Random(load.seed)
    head = (
        f"POST {load.path} HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\nContent-Type: application/json\r\n"
        "x-request-id: %032x\r\ntraceparent: 00-%032x-%016x-01\r\nContent-Length: %d\r\n\r\n%s"
    )
    for body in cycle(load.bodies):
        ids = random.getrandbits(128), random.getrandbits(128), random.getrandbits(64)
        yield (head % (*ids, len(body), body)).encode()


async def run(load: PoissonLoad) -> Sent:
    """Send all, and report."""
    arrivals = poisson(load.rate_per_s, load.duration_s, load.seed)
    sender = Sender(load, posts(load))
    start_s, cpu_s = time.monotonic() + START_S, time.process_time()
    await sender.run([start_s + arrival_s for arrival_s in arrivals])
    share = (time.process_time() - cpu_s) / (time.monotonic() - start_s)
    return Sent([request.outcome() for request in sender.requests], share, sender.opened)


def main() -> None:
    """Run the load on standard input."""
    gc.disable()
    sent = uvloop.run(run(PoissonLoad(**json.load(sys.stdin))))
    outcomes = [(each.status, each.latency_s, each.lag_s) for each in sent.outcomes]
    json.dump({"outcomes": outcomes, "cpu_share": sent.cpu_share, "connections": sent.connections}, sys.stdout)


if __name__ == "__main__":
    main()
