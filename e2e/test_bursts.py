"""A burst that one pod cannot serve in time: what it refuses is demand, and replicas come for it."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from e2e.callers import ROW
from e2e.clusters.cluster import Cluster
from e2e.test_scaling import explain, replicas
from e2e.waiting import eventually

ADDER = {"uri": "file:///models/adder", "parameters": {"baseMicroseconds": 5_000, "perRowMicroseconds": 10_000}}
"""95 rows a second at most in batches of which two fit 200 ms."""


class Offered:
    """Requests at a rate that waits for nobody, each over a connection of its own; statuses by second."""

    def __init__(self, cluster: Cluster, name: str = "adder") -> None:
        address = urlsplit(cluster.address(name))
        self._host, self._port = address.hostname, address.port
        body = f'{{"instances": [{ROW}]}}'.encode()
        head = f"POST /v1/models/{name}:predict HTTP/1.1\r\nhost: {name}\r\ncontent-type: application/json\r\n"
        self._request = f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        self.rate = 0.0
        self.statuses: Counter[tuple[int, str]] = Counter()

    async def run(self, stop: threading.Event) -> None:
        """Call until told to stop."""
        due_s, calls = time.monotonic(), set[asyncio.Task[None]]()
        while not stop.is_set():
            due_s = max(due_s + 1 / self.rate, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            calls.add(call := asyncio.ensure_future(self._call()))
            call.add_done_callback(calls.discard)
        await asyncio.gather(*calls)

    async def _call(self) -> None:
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                writer.write(self._request)
                status = (await reader.readline()).split()[1:2] or [b"closed"]
                writer.close()
                found = status[0].decode()
        except (OSError, TimeoutError) as error:
            found = type(error).__name__
        self.statuses[int(time.monotonic()), found] += 1

    def since(self, begun_s: float) -> Counter[str]:
        """Return the statuses of whole seconds from then on."""
        found: Counter[str] = Counter()
        for (second, status), count in self.statuses.items():
            if second > begun_s:
                found[status] += count
        return found


@contextmanager
def offered(cluster: Cluster, rate: float) -> Iterator[Offered]:
    """Call at a rate until the block ends; it may be changed meanwhile."""
    calls, stop = Offered(cluster), threading.Event()
    calls.rate = rate
    thread = threading.Thread(target=lambda: asyncio.run(calls.run(stop)))
    thread.start()
    try:
        yield calls
    finally:
        stop.set()
        thread.join()


def test_what_is_refused_brings_the_replicas_that_serve_it(namespace: Cluster) -> None:
    namespace.apply(
        model=ADDER,
        batching={"maxBatchSize": 32, "latencyObjectiveMilliseconds": 200},
        scaling={"minReplicas": 1, "maxReplicas": 6},
    )
    namespace.until_ready()

    with offered(namespace, 30) as calls:
        eventually(lambda: calls.since(0)["200"] > 150)
        assert replicas(namespace) == (1, 1, 1, 1)
        calls.rate = 180
        eventually(lambda: replicas(namespace)[0] >= 3, lambda: explain(namespace))
        eventually(lambda: replicas(namespace)[3] >= 3, lambda: explain(namespace), within_s=90)
        message = namespace.condition("adder", "ScalingActive")["message"]
        ready_s = time.monotonic() + 3
        eventually(lambda: calls.since(ready_s)["200"] > 900)
        seen = calls.since(ready_s)

        # An operator that is killed in panic comes back at the scale that is there, and says anew why it is.
        calls.rate = 30
        held = replicas(namespace)[0]
        namespace.within("shoal-system").kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        eventually(lambda: "would do" in namespace.condition("adder", "ScalingActive")["message"], within_s=90)
        assert replicas(namespace)[0] == held

    assert "rows/s asked for" in message
    assert replicas(namespace)[0] <= 4
    assert seen["200"] > 0.9 * seen.total(), seen
