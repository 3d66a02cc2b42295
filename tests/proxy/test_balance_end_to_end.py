"""Kept connections that all lead to one replica, and what its peer makes of it: real proxies, real sockets, time."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson

from shoal_schema.fields.addresses import TcpAddress
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import FakeRuntime, running_proxy
from tests.ports import free_port

OBJECTIVE_S = 0.8
START_S, ROW_S = 0.08, 0.008
"""A batch of 40 takes half the objective: a replica serves about 100 rows a second."""
CAPACITY_PER_S = 100.0
BODY = orjson.dumps(v2_body([row(1)]))
REQUEST = (
    b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    % (V2_PATH.encode(), len(BODY))
) + BODY


@dataclass
class Device(FakeRuntime):
    """A runtime that takes its time, one batch after another."""

    slower: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._free = asyncio.Lock()

    async def _infer(self, headers: dict[str, str], body: bytes) -> Any:
        rows = int(orjson.loads(body[: int(headers["inference-header-content-length"])])["inputs"][0]["shape"][0])
        async with self._free:
            await asyncio.sleep(self.slower * (START_S + ROW_S * rows))
        return await super()._infer(headers, body)


@dataclass
class Outcome:
    """What came of the requests of one replica's clients."""

    in_time: int = 0
    late: int = 0
    refused: int = 0

    @property
    def asked(self) -> int:
        """Return how many there were."""
        return self.in_time + self.late + self.refused


class Pinned:
    """Connections to one replica that stay open, as many as are needed at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.outcome = Outcome()

    async def ask(self) -> None:
        """Ask once and note what came of it."""
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(*self._address)
        begun_s = time.monotonic()
        writer.write(REQUEST)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
        took_s = time.monotonic() - begun_s
        if b" 200 " not in head[:16]:
            self.outcome.refused += 1
        elif took_s <= OBJECTIVE_S:
            self.outcome.in_time += 1
        else:
            self.outcome.late += 1
        self._idle.append((reader, writer))

    def close(self) -> None:
        """Hang up."""
        for _, writer in self._idle:
            writer.close()


async def offer(clients: Mapping[Pinned, float], seconds: float, seed: int = 7) -> None:
    """Let the clients of each replica ask at random, so often a second."""
    loop, random, tasks = asyncio.get_running_loop(), Random(seed), set[asyncio.Task[None]]()
    end_s = loop.time() + seconds

    async def arrive(pinned: Pinned, rate: float) -> None:
        at_s = loop.time()
        while at_s < end_s:
            at_s += random.expovariate(rate)
            await asyncio.sleep(max(0.0, at_s - loop.time()))
            task = asyncio.create_task(pinned.ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async with asyncio.TaskGroup() as group:
        for pinned, rate in clients.items():
            group.create_task(arrive(pinned, rate))
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)


def run_pinned(
    loads: list[float], *, handing: bool, slower: tuple[float, ...] = (), seconds: float = 4.0
) -> list[Outcome]:
    """Return what came of requests at so many times a replica's capacity, each replica's clients pinned to it."""
    ports = [free_port() for _ in loads]
    peers = tuple(f"127.0.0.1:{port}" for port in ports) if handing else ()
    with ExitStack() as stack:
        replicas = []
        for number, port in enumerate(ports):
            factor = slower[number] if slower else 1.0
            replicas.append(
                stack.enter_context(
                    running_proxy(
                        lambda factor=factor: Device(slower=factor),  # type: ignore[misc]
                        listen=TcpAddress("127.0.0.1", port),
                        process__peers=peers,
                        latency_objective_milliseconds=1000 * OBJECTIVE_S,
                        max_batch_size=64,
                        process__connection_age_s=0.0,
                    )
                )
            )

        async def run() -> list[Outcome]:
            pinned = [Pinned(each.address) for each in replicas]
            rates = [CAPACITY_PER_S * load for load in loads]
            await offer({each: min(rate, 60.0) for each, rate in zip(pinned, rates, strict=True) if rate}, 1.0)
            for each in pinned:
                each.outcome = Outcome()
            await offer({each: rate for each, rate in zip(pinned, rates, strict=True) if rate}, seconds)
            for each in pinned:
                each.close()
            return [each.outcome for each in pinned]

        return asyncio.run(run())


def share_refused(outcomes: list[Outcome]) -> float:
    """Return the share of all requests that was refused."""
    return sum(each.refused for each in outcomes) / sum(each.asked for each in outcomes)


def test_pinned_connections_beside_one_idle_peer_are_nearly_all_completed() -> None:
    alone = share_refused(run_pinned([1.5, 0.0], handing=False))
    together = share_refused(run_pinned([1.5, 0.0], handing=True))
    assert alone > 0.2
    assert together < alone / 4


def test_where_all_are_full_no_more_are_rejected_than_if_each_were_alone() -> None:
    alone = share_refused(run_pinned([1.4, 1.4], handing=False))
    together = share_refused(run_pinned([1.4, 1.4], handing=True))
    # On a busy machine the clients may send less than planned while they measure `alone`.
    assert together < max(alone, 1 - 1 / 1.4) + 0.05
