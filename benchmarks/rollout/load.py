"""Clients of a rollout: each response is compared with the result of its own row."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import orjson

from benchmarks.rollout.replicas import CANDIDATE, Replica, row

CONNECTIONS = 64
TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: its id, when it was wanted and its response complete (monotonic seconds), and by whom."""

    number: int
    wanted_s: float
    ended_s: float
    revision: str

    @property
    def took_s(self) -> float:
        """Return the time from the wanted start to the response."""
        return self.ended_s - self.wanted_s


@dataclass(slots=True)
class Seen:
    """What clients have received."""

    samples: list[Sample] = field(default_factory=list)
    """Of requests with status 200."""
    failures: Counter[str] = field(default_factory=Counter)
    """By status, revision and message, or by the error of the connection."""
    wrong: list[int] = field(default_factory=list)
    """Ids of responses with another result than the row's own."""


class Client:
    """One kept connection, for one request at a time."""

    def __init__(self, replica: Replica, name: str = "model") -> None:
        host, _, port = replica.address.partition(":")
        self._address = host, int(port)
        self._head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nhost: {host}\r\ncontent-length: ".encode()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, number: int, wanted_s: float, seen: Seen) -> Sample | None:
        """Send one row, and record its response; None if it failed."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, revision, body = await self._exchange(number)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.close()
            seen.failures[type(error).__name__] += 1
            return None
        ended_s = time.monotonic()
        if status != 200:
            seen.failures[f"{status} by {revision or 'no revision'}: {body.decode(errors='replace')[:200]}"] += 1
            return None
        if orjson.loads(body)["outputs"][0]["data"] != [each + 1 for each in row(number)]:
            seen.wrong.append(number)
        sample = Sample(number, wanted_s, ended_s, revision)
        seen.samples.append(sample)
        return sample

    async def _exchange(self, number: int) -> tuple[int, str, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        data = row(number)
        body = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, len(data)], "data": data}]})
        writer.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        revision = head.partition(b"x-shoal-revision: ")[2].partition(b"\r\n")[0].decode()
        body = await reader.readexactly(length)
        if b"connection: close" in head:  # the proxy limits the age of connections
            self.close()
        return int(head[9:12]), revision, body

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def open_loop(replica: Replica, arrivals_s: Sequence[float], first: int, seen: Seen) -> None:
    """Send requests at given times after now, on kept connections; return when all have ended."""
    idle = [Client(replica) for _ in range(CONNECTIONS)]
    tasks: set[asyncio.Task[None]] = set()
    begun_s = time.monotonic()

    async def send(client: Client, number: int, wanted_s: float) -> None:
        await client.ask(number, wanted_s, seen)
        idle.append(client)

    for number, arrival_s in enumerate(arrivals_s, first):
        wanted_s = begun_s + arrival_s
        if (left_s := wanted_s - time.monotonic()) > 0:
            await asyncio.sleep(left_s)
        client = idle.pop() if idle else Client(replica)
        task = asyncio.ensure_future(send(client, number, wanted_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for client in idle:
        client.close()


async def closed_loop(replica: Replica, clients: int, stopped: Callable[[], bool], seen: Seen) -> None:
    """Send requests from each of several clients, one after another, until stopped."""
    ids = iter(range(1, 1 << 24))  # exact as FP32

    async def run() -> None:
        client = Client(replica)
        while not stopped():
            await client.ask(next(ids), time.monotonic(), seen)
        client.close()

    await asyncio.gather(*(run() for _ in range(clients)))


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Return arrival times (s) at a mean rate."""
    random, now_s, times = Random(seed), 0.0, []
    while (now_s := now_s + random.expovariate(rate)) < seconds:
        times.append(now_s)
    return times


def p99_s(samples: Sequence[Sample]) -> float:
    """Return the 99th percentile of the time of requests."""
    times = sorted(each.took_s for each in samples)
    return times[len(times) * 99 // 100]


def candidate_share(samples: Sequence[Sample]) -> float:
    """Return the share of requests that the candidate served."""
    return sum(each.revision == CANDIDATE for each in samples) / len(samples)
