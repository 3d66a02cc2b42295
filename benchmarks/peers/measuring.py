"""Measure one server under one kind of load after the other."""

import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from benchmarks.peers.open_loop import PoissonLoad, send
from benchmarks.peers.outcomes import summary
from benchmarks.peers.running import PeerError, Served, served
from benchmarks.peers.tuning import OBJECTIVE_MS, Settings
from benchmarks.peers.workload import SLOW, WORKLOADS
from benchmarks.wrk import Load, Wrk, WrkError

ROOT = Path(__file__).parents[2]
CONNECTIONS = (1, 64, 256)
OFFERED_PER_S = (440, 781, 1313, 1757)
"""About 0.5, 0.9, 1.5 and 2 x what `slow` can do."""
WARM_UP_S = 1
WARM_UP_PER_S = 100
WARM_UP_SEED = 11
SETTLE_S = 5.0

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long each load runs: closed loops whole seconds, open loops any; and the seed of the arrivals."""

    wrk: Wrk
    closed_s: int = 4
    open_s: float = 10.0
    seed: int = 1
    connections: tuple[int, ...] = CONNECTIONS
    offered_per_s: tuple[int, ...] = OFFERED_PER_S


def measure(peer: str, workload: str, settings: Settings, effort: Effort) -> Iterator[tuple[str, Figures | str]]:
    """Serve a model and load it; yield each load's name with what was measured, or why nothing was."""
    loads = open_loads if workload == SLOW.name else closed_loads
    yield from loads(peer, workload, settings, effort)


def closed_loads(peer: str, workload: str, settings: Settings, effort: Effort) -> Iterator[tuple[str, Figures | str]]:
    """Load with clients that each wait for their answer before they ask again."""
    with served(peer, WORKLOADS[workload], settings) as server:
        for connections in effort.connections:
            try:
                yield closed_name(connections), closed(server, connections, effort)
            except WrkError as error:
                yield closed_name(connections), str(error)


def closed(server: Served, connections: int, effort: Effort) -> Figures:
    """Measure one closed loop."""
    headers = {"content-type": "application/json"}
    first, *more = (body.encode() for body in server.launch.bodies)
    load = Load(server.url, first, connections, effort.closed_s, headers, more)
    effort.wrk.run(replace(load, duration_s=WARM_UP_S))
    before_s = server.cpu_s()
    measured = effort.wrk.run(load)
    used_s = server.cpu_s() - before_s
    return {
        "requests_per_s": measured.requests_per_s,
        "p50_ms": measured.p50_ms,
        "p99_ms": measured.p99_ms,
        "cpu_us_per_request": 1e6 * used_s / measured.requests,
    }


def open_loads(peer: str, workload: str, settings: Settings, effort: Effort) -> Iterator[tuple[str, Figures | str]]:
    """Offer each rate in turn; a server that does not come to rest in between is started anew."""
    rates = list(effort.offered_per_s)
    while rates:
        with served(peer, WORKLOADS[workload], settings) as server:
            offer(server, WARM_UP_PER_S, replace(effort, open_s=3 * WARM_UP_S, seed=WARM_UP_SEED))
            rate = rates.pop(0)
            yield open_name(rate), offer(server, rate, effort)
            while rates and comes_to_rest(server):
                rate = rates.pop(0)
                yield open_name(rate), offer(server, rate, effort)


def offer(server: Served, rate_per_s: float, effort: Effort) -> Figures:
    """Measure one offered rate."""
    before_s = server.cpu_s()
    load = PoissonLoad(server.port, server.launch.path, server.launch.bodies, rate_per_s, effort.open_s, effort.seed)
    try:
        sent = send(load)
    except subprocess.SubprocessError as error:
        raise PeerError(f"the load generator failed: {error}") from error
    used_s = server.cpu_s() - before_s
    return {
        **summary(sent.outcomes, OBJECTIVE_MS / 1000, effort.open_s),
        "cpu_us_per_request": 1e6 * used_s / len(sent.outcomes),
        "sender_cpu_share": sent.cpu_share,
        "connections": sent.connections,
    }


def comes_to_rest(server: Served) -> bool:
    """Wait until a lone request is answered in time; False when that takes too long."""
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s:
        started_s = time.monotonic()
        if answers(server) and time.monotonic() - started_s < OBJECTIVE_MS / 1000:
            return True
        time.sleep(0.1)
    return False


def answers(server: Served) -> bool:
    """Send one row."""
    headers = {"content-type": "application/json"}
    try:
        answer = httpx.post(server.url, content=server.launch.bodies[0], headers=headers, timeout=5, trust_env=False)
    except httpx.TransportError:
        return False
    return answer.status_code == httpx.codes.OK


def closed_name(connections: int) -> str:
    """Name a closed loop."""
    return f"{connections} connection{'s' if connections != 1 else ''}"


def open_name(rate_per_s: int) -> str:
    """Name an offered rate."""
    return f"{rate_per_s} offered/s"
