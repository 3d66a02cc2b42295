"""A graph of two models beside the same chain by hand, and beside a composition of Ray Serve: ``make bench-graphs``.

The models add one and take no time, so that what is measured is what lies between them. All are loaded in turn, round
after round, over as many connections.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from tqdm import tqdm

from benchmarks.peers import running
from benchmarks.peers.environments import InstallError, version_of
from benchmarks.peers.launching import V2_BODIES
from benchmarks.peers.workload import ADD
from benchmarks.processes import cpu_s, find_child
from benchmarks.report import Row, Target, document, make_row, slug, table
from benchmarks.surroundings import compiled, surroundings
from benchmarks.wrk import Load, Wrk, WrkError, find_wrk
from examples.server import ServerError, free_ports, serving, start, stop, tail

ROOT = Path(__file__).parents[1]
ADDER = ROOT / "examples" / "adder"
NO_TIME = {"model.parameters.baseMicroseconds": "0", "model.parameters.perRowMicroseconds": "0"}
RAY = {"batch_wait_timeout_s": 0.0, "max_ongoing_requests": 256}
START_TIMEOUT_S = 30.0
CONNECTIONS = (1, 32)
TARGETS = (
    Target("graph, 1 connection", "executor_per_step_proxy", 1.5, at_least=False),
    Target("graph, 32 connections", "times_ray", 5, at_least=True),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Something that takes a row through two models: where it is asked, and what its processor time is, by process."""

    name: str
    url: str
    bodies: Sequence[bytes]
    cpu_s: dict[str, Callable[[], float]]


def main() -> int:
    """Measure, print, and write the results file."""
    options = arguments()
    try:
        wrk = find_wrk(ROOT / ".tools")
        rows = measure(wrk, options.duration_s, options.repetitions)
    except (WrkError, ServerError, InstallError, running.PeerError) as error:
        print(f"bench-graphs: {error}", file=sys.stderr)
        return 1
    around = {**surroundings(), "ray": version_of("ray"), "graph": compiled("shoal_proxy.graph.link")}
    print("\n".join(table(rows)))
    print("\n".join(target.line(rows) for target in TARGETS))
    name = f"graphs-{slug(around['machine'])}-{around['date']}.json"
    path = options.results / name
    path.write_text(json.dumps(document(rows, TARGETS, around), indent=2) + "\n")
    print(f"written: {path}")
    return 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench-graphs", description=__doc__)
    parser.add_argument("--duration-s", type=int, default=5, help="of each load")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def measure(wrk: Wrk, duration_s: int, repetitions: int) -> list[Row]:
    """Load each case in turn, at each number of connections."""
    with ExitStack() as stack:
        cases = list(started(stack))
        found: dict[str, list[dict[str, float]]] = {}
        progress = tqdm(total=repetitions * len(cases) * len(CONNECTIONS), unit=" loads", leave=False, disable=None)
        for connections in CONNECTIONS:
            for case in cases:
                load_once(wrk, case, connections, 1)
            for _ in range(repetitions):
                for case in cases:
                    plural = "" if connections == 1 else "s"
                    name = f"{case.name}, {connections} connection{plural}"
                    found.setdefault(name, []).append(load_once(wrk, case, connections, duration_s))
                    progress.update()
    compare(found)
    return [make_row(name, each) for name, each in found.items()]


def compare(found: dict[str, list[dict[str, float]]]) -> None:
    """Add the ratios, each of two loads of the same round."""
    for name in [name for name in found if name.startswith("graph")]:
        _, _, connections = name.partition(", ")
        for other in ("ray", "by hand"):
            for mine, their in zip(found[name], found[f"{other}, {connections}"], strict=True):
                mine[f"times_{other.replace(' ', '_')}"] = mine["requests_per_s"] / their["requests_per_s"]


def load_once(wrk: Wrk, case: Case, connections: int, duration_s: int) -> dict[str, float]:
    """Load a case; return rates, latencies and what each process used for a request."""
    before_s = {name: read() for name, read in case.cpu_s.items()}
    body, *more = case.bodies
    headers = {"content-type": "application/json"}
    measured = wrk.run(Load(case.url, body, connections, duration_s, headers, more_bodies=more))
    used = {name: 1e3 * (read() - before_s[name]) / measured.requests for name, read in case.cpu_s.items()}
    found = {"requests_per_s": measured.requests_per_s, "p50_ms": measured.p50_ms, "p99_ms": measured.p99_ms}
    found |= {f"{name}_cpu_ms": value for name, value in used.items()}
    if "executor" in used:
        found["executor_per_step_proxy"] = used["executor"] / used["step_proxy"]
    return found


def started(stack: ExitStack) -> Iterator[Case]:
    """Start all that is measured."""
    first, second = (stack.enter_context(serving(ADDER, fields=NO_TIME)) for _ in range(2))
    proxies = [find_child(server.pid, "shoal_proxy") for server in (first, second)]

    def of_proxies() -> float:
        return sum(map(cpu_s, proxies)) / 2

    bodies = [body.encode() for body in V2_BODIES]
    yield Case("one proxy", f"{first.url}/v2/models/adder/infer", bodies, {"proxy": lambda: cpu_s(proxies[0])})
    url, pid = stack.enter_context(executor(f"{first.url}/v2/models/adder", f"{second.url}/v2/models/adder"))
    yield Case("graph", url, bodies, {"executor": lambda: cpu_s(pid), "step_proxy": of_proxies})
    hand, hand_pid = stack.enter_context(by_hand(*(f"{each.url}/v2/models/adder/infer" for each in (first, second))))
    yield Case("by hand", hand, bodies, {"by_hand": lambda: cpu_s(hand_pid), "step_proxy": of_proxies})
    composed = stack.enter_context(running.served("ray-graph", ADD, RAY))
    yield Case("ray", composed.url, [body.encode() for body in composed.launch.bodies], {"all": composed.cpu_s})


@contextmanager
def executor(first: str, second: str) -> Iterator[tuple[str, int]]:
    """Run a proxy with a graph of two models; give where it is asked, and its process."""
    port, admin_port = free_ports(2)
    steps = [
        {"name": "first", "url": first, "inputs": {"x": "request.x"}},
        {"name": "second", "url": second, "inputs": {"x": "first.y"}},
    ]
    environment = {
        "SHOAL_PROXY_GRAPH": json.dumps({"steps": steps, "outputs": {"y": ["second.y"]}}),
        "SHOAL_MODEL_NAME": "chain",
        "SHOAL_PROXY_LISTEN": f"127.0.0.1:{port}",
        "SHOAL_PROXY_ADMIN_LISTEN": f"127.0.0.1:{admin_port}",
    }
    with program(["-m", "shoal_proxy"], environment, f"http://127.0.0.1:{admin_port}/readyz") as pid:
        yield f"http://127.0.0.1:{port}/v2/models/chain/infer", pid


@contextmanager
def by_hand(first: str, second: str) -> Iterator[tuple[str, int]]:
    """Run the chain by hand; give where it is asked, and its process."""
    (port,) = free_ports(1)
    # Nothing there answers GET: that it says so is enough.
    with program(
        ["-m", "benchmarks.by_hand", str(port), first, second], {}, f"http://127.0.0.1:{port}/infer", 405
    ) as pid:
        yield f"http://127.0.0.1:{port}/infer", pid


@contextmanager
def program(command: list[str], environment: dict[str, str], ready_url: str, status: int = 200) -> Iterator[int]:
    """Run a program of ours beside this one until the block ends.

    Raises:
        ServerError: it did not become ready.
    """
    with tempfile.TemporaryFile() as log:
        process = start([sys.executable, *command], log, environment)
        try:
            ends_s = time.monotonic() + START_TIMEOUT_S
            while not answers(ready_url, status):
                if process.poll() is not None or time.monotonic() > ends_s:
                    raise ServerError(f"{' '.join(command)} did not become ready; its log ends:\n{tail(log)}")
                time.sleep(0.1)
            yield process.pid
        finally:
            stop(process)


def answers(url: str, status: int) -> bool:
    """Ask once."""
    try:
        return httpx.get(url, trust_env=False, timeout=5).status_code == status
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    running.adopt_orphans()
    sys.exit(main())
