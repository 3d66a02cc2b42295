"""Clients of a served case, in several processes: ``python -m benchmarks.gpu.clients``.

Each process reads a `Plan` as JSON from its first line of input, makes its requests, prints `ready`, reads the time to
begin (monotonic clock), and prints what it received. Connections and their parser are those of
`benchmarks.peers.open_loop`.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from random import Random
from typing import Any

import uvloop

from benchmarks.gpu.cases import MODEL, find_case, infer_requests
from benchmarks.peers.arrivals import poisson
from benchmarks.peers.open_loop import PoissonLoad, Request, Sender
from examples.report import percentile

PATH = f"/v2/models/{MODEL}/infer"
REQUESTS, SENTENCES = 64, 1024
"""Different bodies of each process, used in turn. Sentences are many, so that their mean length varies little."""
LARGE_BYTES = 65_536
HEADS = 4
"""Of each large body: to join head and body anew for each request would copy it once more."""
RETRY_S = 0.05
START_S = 0.3
PATIENCE_S = 30.0
MAX_CONNECTIONS = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """Load of one process, or of all together.

    Args:
        port: of the server on 127.0.0.1.
        case: name of the case.
        quick: whether its network is tiny.
        request_rows: rows per request.
        clients: in a closed loop, each with a connection of its own; 0 for an open loop.
        rate_per_s: requests per second in an open loop.
        warm_up_s, duration_s: time before the measurement, and of it.
        seed: of rows and arrivals.
    """

    port: int
    case: str
    quick: bool
    request_rows: int = 1
    clients: int = 0
    rate_per_s: float = 0.0
    warm_up_s: float = 1.0
    duration_s: float = 4.0
    seed: int = 1

    def parts(self, processes: int) -> "list[Plan]":
        """Return the load of each process."""
        count = min(processes, self.clients) if self.clients else processes
        return [
            replace(
                self,
                clients=len(range(index, self.clients, count)),
                rate_per_s=self.rate_per_s / count,
                seed=self.seed + index,
            )
            for index in range(count)
        ]


class Client(Request):
    """One request of a closed loop, whose response starts the next one."""

    def __init__(self, crowd: "Crowd") -> None:
        super().__init__(time.monotonic())
        self._crowd = crowd

    def end(self, status: int) -> None:
        """Record the response, and send the next request; after a rejection, a little later."""
        super().end(status)
        self._crowd.received(status, self.done_s, self.done_s - self.soft_deadline_s)


class Crowd:
    """Clients of a closed loop."""

    def __init__(self, sender: Sender, begin_s: float, end_s: float) -> None:
        self._sender = sender
        self._begin_s, self._end_s = begin_s, end_s
        self._received: list[tuple[int, float]] = []

    async def run(self, clients: int) -> list[tuple[int, float]]:
        """Return status and seconds of each response within the measurement."""
        for _ in range(clients):
            self._send()
        await asyncio.sleep(self._end_s - time.monotonic())
        return list(self._received)

    def received(self, status: int, done_s: float, took_s: float) -> None:
        """Record a response, and send the next request."""
        if self._begin_s <= done_s < self._end_s:
            self._received.append((status, took_s))
        if done_s >= self._end_s:
            return
        if status == 200:
            self._send()
        else:
            asyncio.get_running_loop().call_later(RETRY_S, self._send)

    def _send(self) -> None:
        self._sender.post(Client(self))


def send(plan: Plan, processes: int) -> dict[str, float]:
    """Run a load in that many processes, and return what the clients received.

    Raises:
        subprocess.SubprocessError: a process failed.
    """
    parts = plan.parts(processes)
    with ExitStack() as running:
        children = [running.enter_context(start()) for _ in parts]
        try:
            for child, part in zip(children, parts, strict=True):
                write_line(child, json.dumps(asdict(part)))
            for child in children:
                read_line(child)
            begin_s = time.monotonic() + START_S
            for child in children:
                write_line(child, json.dumps(begin_s))
            found = [json.loads(read_line(child)) for child in children]
        except BaseException:
            for child in children:
                child.kill()
            raise
    return summary(found, plan)


def start() -> subprocess.Popen[str]:
    """Start a process of clients."""
    return subprocess.Popen(
        [sys.executable, "-m", __spec__.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def write_line(child: subprocess.Popen[str], line: str) -> None:
    """Send a line to a process."""
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


def read_line(child: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    assert child.stdout is not None
    if not (line := child.stdout.readline()):
        raise subprocess.SubprocessError(f"a process of clients ended with status {child.wait()}")
    return line


def summary(found: Sequence[Mapping[str, Any]], plan: Plan) -> dict[str, float]:
    """Return rates and latencies of all processes together, and the busiest process's share of a core."""
    responses = [(status, took_s) for each in found for status, took_s in each["responses"]]
    served_s = [took_s for status, took_s in responses if status == 200]
    statuses = Counter(status for status, _ in responses)
    latencies = {f"p{share}_ms": 1e3 * percentile(served_s, share / 100) for share in (50, 99)} if served_s else {}
    return {
        "rows_per_s": len(served_s) * plan.request_rows / plan.duration_s,
        **latencies,
        "rejected_per_s": statuses[503] / plan.duration_s,
        "failed_per_s": (len(responses) - len(served_s) - statuses[503]) / plan.duration_s,
        "clients_cpu": max(each["cpu_share"] for each in found),
        "client_processes": len(found),
    }


def wire_requests(plan: Plan) -> Iterator[bytes]:
    """Yield requests as they go over the wire, small ones each with an id of its own."""
    random = Random(plan.seed)
    case = find_case(plan.case, quick=plan.quick)
    made = infer_requests(case, SENTENCES if case.ragged else REQUESTS, plan.request_rows, plan.seed)
    if max(len(body) for body, _ in made) > LARGE_BYTES:
        yield from cycle([wire_request(plan, random, *each) for _ in range(HEADS) for each in made])
    for each in cycle(made):
        yield wire_request(plan, random, *each)


def wire_request(plan: Plan, random: Random, body: bytes, header_bytes: int) -> bytes:
    """Return the bytes of one request, with a new id."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{plan.port}\r\nContent-Type: application/octet-stream\r\n"
        f"inference-header-content-length: {header_bytes}\r\nx-request-id: {random.getrandbits(128):032x}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def run(plan: Plan, requests: Iterator[bytes], begin_s: float) -> dict[str, Any]:
    """Send the load of one process, and return its responses and share of a core."""
    limit = plan.clients or MAX_CONNECTIONS
    target = PoissonLoad(
        plan.port, PATH, (), plan.rate_per_s, plan.duration_s, plan.seed, PATIENCE_S, max_connections=limit
    )
    sender = Sender(target, requests)
    await asyncio.sleep(begin_s - time.monotonic())
    cpu_s = time.process_time()
    measured_s = begin_s + plan.warm_up_s
    if plan.clients:
        responses = await Crowd(sender, measured_s, measured_s + plan.duration_s).run(plan.clients)
    else:
        arrivals = poisson(plan.rate_per_s, plan.warm_up_s + plan.duration_s, plan.seed)
        await sender.run([begin_s + arrival_s for arrival_s in arrivals])
        kept = [each for each in sender.requests if each.soft_deadline_s >= measured_s]
        responses = [(each.outcome().status, each.outcome().latency_s) for each in kept]
    share = (time.process_time() - cpu_s) / (time.monotonic() - begin_s)
    return {"responses": responses, "cpu_share": share}


def main() -> None:
    """Run the load on standard input."""
    plan = Plan(**json.loads(sys.stdin.readline()))
    requests = wire_requests(plan)
    # Makes all bodies now.
    next(requests)
    print("ready", flush=True)
    begin_s = json.loads(sys.stdin.readline())
    gc.disable()
    found = uvloop.run(run(plan, requests, begin_s))
    # With PYTHONUNBUFFERED, `print` loses what the pipe does not take at once.
    with open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as results:
        results.write(json.dumps(found) + "\n")
    # Responses may still arrive, and closing the connections of all clients takes time.
    os._exit(0)


if __name__ == "__main__":
    main()
