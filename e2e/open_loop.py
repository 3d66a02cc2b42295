"""Open-loop load: requests at a rate, regardless of earlier responses."""

import asyncio
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from e2e.clients import ROW
from e2e.clusters.cluster import Cluster


class Call(NamedTuple):
    """A request: when it was sent, what became of it, and how long that took."""

    begun_s: float
    status: str
    took_s: float


class OpenLoopLoad:
    """Requests at a rate that may be changed meanwhile, each over a connection of its own."""

    def __init__(self, cluster: Cluster, rate: float, *, timeout_s: float, name: str = "adder") -> None:
        address = urlsplit(cluster.address(name))
        self._host, self._port = address.hostname, address.port
        body = f'{{"instances": [{ROW}]}}'.encode()
        head = f"POST /v1/models/{name}:predict HTTP/1.1\r\nhost: {name}\r\ncontent-type: application/json\r\n"
        self._request = f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        self._timeout_s = timeout_s
        self.rate = rate
        self.calls: list[Call] = []
        self.refusals: list[str] = []
        """What was said, head and body, instead of an answer."""

    async def run(self, stop: threading.Event) -> None:
        """Send requests until stopped."""
        due_s, calls = time.monotonic(), set[asyncio.Task[None]]()
        while not stop.is_set():
            due_s = max(due_s + 1 / self.rate, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            calls.add(call := asyncio.ensure_future(self._call()))
            call.add_done_callback(calls.discard)
        await asyncio.gather(*calls)

    async def _call(self) -> None:
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._exchange(*await asyncio.open_connection(self._host, self._port))
        except (OSError, TimeoutError) as error:
            found = type(error).__name__
        self.calls.append(Call(begun_s, found, time.monotonic() - begun_s))

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        try:
            writer.write(self._request)
            status = (await reader.readline()).split()[1:2] or [b"closed"]
            if status != [b"200"]:
                self.refusals.append((await reader.read()).decode(errors="replace"))
            return status[0].decode()
        finally:
            writer.close()

    def since(self, begun_s: float) -> list[Call]:
        """Return what was sent from then on and has ended."""
        return [call for call in self.calls if call.begun_s >= begun_s]

    def statuses(self, begun_s: float = 0) -> Counter[str]:
        """Return what became of requests sent from then on."""
        return Counter(call.status for call in self.since(begun_s))


@contextmanager
def open_loop_load(cluster: Cluster, rate: float, *, timeout_s: float = 10) -> Iterator[OpenLoopLoad]:
    """Call at a rate until the block ends."""
    calls, stop = OpenLoopLoad(cluster, rate, timeout_s=timeout_s), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(calls.run(stop)))
    thread.start()
    try:
        yield calls
    finally:
        stop.set()
        thread.join()


def row(name: str, calls: Sequence[Call], note: str = "") -> str:
    """Return a line of a table: how many, how many answered, how long it took."""
    took_ms = sorted(1000 * call.took_s for call in calls) or [0.0]
    answered = sum(call.status == "200" for call in calls)
    late_ms = took_ms[int(0.99 * (len(took_ms) - 1))]
    return f"{name:22} {len(calls):7} {answered:9} {statistics.median(took_ms):8.0f} {late_ms:8.0f}  {note}"


HEAD = f"{'':22} {'asked':>7} {'answered':>9} {'p50 ms':>8} {'p99 ms':>8}"
