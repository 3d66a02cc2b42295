"""What reading a large fleet costs the operator: processor time a tick, and how long ticks take.

A process of its own stands for all pods, each at an address of the loopback network; the operator's scraper and law run
here unchanged. ``python -m benchmarks.scraping [--services 1000] [--pods 2] [--silent 0] [--seconds 20]``; of each
service the first ``silent`` pods take the connection and never answer.
"""

import argparse
import asyncio
import multiprocessing
import resource
import socket
import statistics
import time
from collections.abc import Sequence

import msgspec

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.scaling.autoscaler import Autoscaler
from shoal_operator.scaling.reading import Reading
from shoal_operator.scaling.scraper import Scraper, allow_connections
from shoal_operator.scaling.service_cache import CachedService, Replica, ScaledService
from shoal_operator.scaling.targets import ScalingTargets
from shoal_operator.zero.scale_to_zero import ScaleToZero
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.load import Capacity, Load, RejectedRows
from shoal_schema.process.settings.operator import OperatorProcess

INTERVAL_S = 2.0
SETTLE_S = 6.0


class Pod(asyncio.Protocol):
    """Answers with counters that go on; or never, where its address says so."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection (asyncio)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._silent = transport.get_extra_info("sockname")[0].startswith("127.2.")

    def data_received(self, data: bytes) -> None:
        """Answer (asyncio)."""
        if not self._silent:
            body = msgspec.json.encode(load_at(time.monotonic()))
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self._transport.write(head + body)


def load_at(now_s: float) -> Load:
    """Return what a pod says that serves 50 rows a second."""
    rows = int(50 * now_s)
    return Load(
        time_s=now_s,
        queued_rows=2,
        running_rows=3,
        arrived_rows=rows,
        answered_rows=rows,
        refused_rows=RejectedRows(0, 0, 0, 0),
        forwarded_rows=0,
        row_seconds=5.0 * now_s,
        queued_row_seconds=2.0 * now_s,
        busy_s=0.5 * now_s,
        utilization=0.5,
        objective_attainable=True,
        draining=False,
        capacity=Capacity(94.7, 13.5),
        expected_wait_s=0.03,
    )


def serve(sock: socket.socket) -> None:
    """Be all pods."""
    allow_connections()

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Pod, sock=sock, backlog=4096)
        await server.serve_forever()

    asyncio.run(main())


class Timed:
    """A scraper that notes how long reading a service takes."""

    def __init__(self, scraper: Scraper) -> None:
        self._scraper = scraper
        self.took_s: list[float] = []
        self.no_load = 0

    async def read(self, replicas: Sequence[Replica]) -> list[Reading]:
        """Read a service."""
        began_s = time.monotonic()
        readings = await self._scraper.read(replicas)
        self.took_s.append(time.monotonic() - began_s)
        self.no_load += sum(reading.load is None for reading in readings)
        return readings


class NoCluster:
    """Takes every scale."""

    async def scale(self, key: Key, replicas: int, *, was: int) -> Json | None:
        """Take it."""
        return {"metadata": {"namespace": key.namespace, "name": key.name, "uid": "uid"}}

    async def post_event(self, event: Json) -> None:
        """Take it."""

    async def set_deletion_cost(self, key: Key, uid: str, cost: int) -> None:
        """Take it."""


def filled(services: int, pods: int, silent: int) -> Records:
    """Return a fleet of so many services, each with so many pods."""
    records = Records()
    for at in range(services):
        key = Key("bench", f"service-{at}")
        scaled = ScaledService(ScalingTargets(1, 50, None, objective_s=0.2), pods, 1, f"uid-{at}")
        addresses = [f"127.{2 if pod < silent else 1 + 2 * pod}.{at >> 8}.{at & 255 or 1}" for pod in range(pods)]
        replicas = tuple(Replica(f"{at}-{pod}", address) for pod, address in enumerate(addresses))
        records.put(key, CachedService(scaled, replicas=replicas))
    return records


async def measure(port: int, records: Records, seconds: float) -> None:
    """Run the operator's loop for so long, and print what it took."""
    timed = Timed(Scraper(port))
    scale_to_zero = ScaleToZero(records, OperatorProcess(), lambda key, delay_s: None, time.monotonic)
    autoscaler = Autoscaler(records, timed, lambda key: None, time.monotonic, window_s=300, scale_to_zero=scale_to_zero)
    running = asyncio.ensure_future(autoscaler.run(NoCluster(), INTERVAL_S))  # type: ignore[arg-type]  # it scales alone
    await asyncio.sleep(SETTLE_S)
    timed.took_s.clear()
    timed.no_load = 0
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    cores = (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)
    took_s = sorted(timed.took_s)
    print(
        f"{cores:.2f} cores; {len(took_s) / seconds:.0f} services read a second, {timed.no_load} pods unread; a service"
        f" took {1000 * statistics.median(took_s):.0f} ms, p99 {1000 * took_s[len(took_s) * 99 // 100]:.0f} ms;"
        f" {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB"
    )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await timed._scraper.close()


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("services", 1000), ("pods", 2), ("silent", 0), ("seconds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    allow_connections()
    sock = socket.socket()
    sock.bind(("0.0.0.0", 0))
    pods = multiprocessing.Process(target=serve, args=(sock,), daemon=True)
    pods.start()
    asyncio.run(measure(sock.getsockname()[1], filled(args.services, args.pods, args.silent), args.seconds))
    pods.kill()


if __name__ == "__main__":
    main()
