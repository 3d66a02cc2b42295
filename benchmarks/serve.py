"""Measure what serving costs: ``make bench-serve``, or ``python -m benchmarks.serve [--quick]``.

The adder waits as an accelerator would (4 ms and 0.1 ms a row), so its ceiling at 64 rows a batch
is 64 / 10.4 ms = 6154 requests/s, whatever the processor. The mlp takes microseconds: its rate is
the server's own. wrk, proxy and runtime share this machine's cores. Linux only, since processor
time is read from /proc. Prints a table and writes a JSON file to benchmarks/results.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families
from tqdm import tqdm

from benchmarks.processes import cpu_s, find_child, resident_bytes
from benchmarks.report import Row, Target, document, make_row, mean_batch_rows, slug, table
from benchmarks.rows import random_rows, v2_request
from benchmarks.surroundings import surroundings
from benchmarks.wrk import Load, Measurement, Wrk, WrkError, find_wrk
from examples.server import Server, ServerError, free_ports, serving

ROOT = Path(__file__).parents[1]
ADDER, MLP = ROOT / "examples/adder", ROOT / "examples/mlp"
COST = {
    "model.parameters.baseMicroseconds": "4000",
    "model.parameters.perRowMicroseconds": "100",
    "batching.maxBatchSize": "64",
}
PICTURE_VALUES = 3 * 224 * 224
WARM_UP_S = 1
BUSY = 0.5
"""Load average above which others take a share of the processor that shows."""
IMPORT = """
import sys, time
started_s = time.perf_counter()
import shoal_proxy.__main__
print(time.perf_counter() - started_s, len(sys.modules))
"""
TARGETS = (
    Target("adder, 1 connection", "p50_ms", 5.2, at_least=False),
    Target("adder, 64 connections", "requests_per_s", 4000, at_least=True),
    Target("adder, 256 connections", "requests_per_s", 5600, at_least=True),
    Target("mlp, 64 connections", "requests_per_s", 16000, at_least=True),
    Target("proxy after the load", "resident_mb", 100, at_least=False),
)


@dataclass(frozen=True, slots=True)
class Rounds:
    """How long and how often each case runs."""

    wrk: Wrk
    duration_s: int
    repetitions: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 when it ran, whether or not targets are met."""
    parser = argparse.ArgumentParser("python -m benchmarks.serve", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short repetition of each case")
    options = parser.parse_args(arguments)
    here = surroundings()
    if here["load_average"] > BUSY:
        print(f"This machine is busy (load {here['load_average']:.1f}): expect worse figures.")
    try:
        wrk = find_wrk(ROOT / ".tools")
        rounds = Rounds(wrk, 2, 1) if options.quick else Rounds(wrk, 4, 3)
        rows = measure(rounds)
    except (WrkError, ServerError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    publish(rows, here)
    return 0


def measure(rounds: Rounds) -> list[Row]:
    """Run all cases, one server at a time."""
    rows: list[Row] = []
    cases = (adder_rows, mlp_rows, tensor_rows, echo_rows, import_rows)
    for case in tqdm(cases, unit=" cases", disable=None, leave=False):
        rows += case(rounds)
    return rows


def adder_rows(rounds: Rounds) -> list[Row]:
    """Measure batching against a model whose cost is known."""
    with serving(ADDER, fields=COST) as server:
        return [
            run_case(
                rounds,
                f"adder, {plural(connections)}",
                server,
                json_load(server, "adder", connections),
            )
            for connections in (1, 64, 256)
        ]


def mlp_rows(rounds: Rounds) -> list[Row]:
    """Measure the server's own rate, and its memory after it."""
    with serving(MLP) as server:
        row = run_case(rounds, "mlp, 64 connections", server, json_load(server, "mlp", 64))
        memory = resident_bytes(find_child(server.pid, "shoal_proxy"))
        return [row, make_row("proxy after the load", [{"resident_mb": memory / 1e6}])]


def tensor_rows(rounds: Rounds) -> list[Row]:
    """Measure a picture's worth of raw tensor, in and out."""
    columns = {"model.parameters.columns": str(PICTURE_VALUES)}
    with serving(ADDER, fields=columns) as server:
        return [run_case(rounds, "600 KB tensor, 4 connections", server, tensor_load(server))]


def echo_rows(rounds: Rounds) -> list[Row]:
    """Measure what uvicorn alone takes for the same bodies."""
    with echo_server() as (url, pid):
        loads = {
            "64 connections": Load(url, json_bodies()[0], 64, 1, more_bodies=json_bodies()[1:]),
            "600 KB": Load(url, tensor_body()[0], 4, 1),
        }
        return [
            make_row(f"bare uvicorn echo, {name}", repeat(rounds, load, cpu_of(pid))) for name, load in loads.items()
        ]


def import_rows(rounds: Rounds) -> list[Row]:
    """Measure how long a proxy takes to be imported, and how many modules that loads."""
    repetitions = []
    for _ in range(rounds.repetitions):
        result = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=60)
        seconds, modules = result.stdout.split()
        repetitions.append({"import_ms": float(seconds) * 1e3, "modules": float(modules)})
    return [make_row("proxy import", repetitions)]


def run_case(rounds: Rounds, case: str, server: Server, load: Load) -> Row:
    """Load a server of ours; add the mean batch, warm-up included, to what is measured."""
    repetitions = []
    proxy_pid = find_child(server.pid, "shoal_proxy")
    for _ in range(rounds.repetitions):
        before = batch_sums(server.metrics())
        [measured] = repeat(replace(rounds, repetitions=1), load, cpu_of(proxy_pid))
        batch = mean_batch_rows(before, batch_sums(server.metrics()))
        repetitions.append({**measured, "mean_batch_rows": batch})
    return make_row(case, repetitions)


def repeat(rounds: Rounds, load: Load, cpu: Callable[[], float]) -> list[dict[str, float]]:
    """Warm up, then load as often as planned; ``cpu`` reads the server's processor time."""
    rounds.wrk.run(replace(load, duration_s=WARM_UP_S))
    repetitions = []
    for _ in range(rounds.repetitions):
        before_s = cpu()
        measured = rounds.wrk.run(replace(load, duration_s=rounds.duration_s))
        repetitions.append(quantities(measured, cpu() - before_s))
    return repetitions


def quantities(measured: Measurement, used_cpu_s: float) -> dict[str, float]:
    """Name what one run measured."""
    return {
        "requests_per_s": measured.requests_per_s,
        "p50_ms": measured.p50_ms,
        "p99_ms": measured.p99_ms,
        "cpu_us_per_request": used_cpu_s / measured.requests * 1e6,
    }


def cpu_of(pid: int) -> Callable[[], float]:
    """Return what reads a process's used processor time in seconds."""
    return lambda: cpu_s(pid)


def batch_sums(metrics: str) -> dict[str, float]:
    """Return count and sum of the batches' rows so far."""
    totals = {"count": 0.0, "sum": 0.0}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples if family.name == "shoal_proxy_batch_rows" else ():
            if (name := sample.name.rpartition("_")[2]) in totals:
                totals[name] = sample.value
    return totals


def json_load(server: Server, model: str, connections: int) -> Load:
    """Return single rows of 16 numbers in V2 JSON."""
    url = f"{server.url}/v2/models/{model}/infer"
    headers = {"content-type": "application/json"}
    first, *more = json_bodies()
    return Load(url, first, connections, duration_s=1, headers=headers, more_bodies=more)


def json_bodies() -> list[bytes]:
    """Return V2 requests with one row of 16 numbers each."""
    return [orjson.dumps(v2_request(row)) for row in random_rows(64, 16)]


def tensor_load(server: Server) -> Load:
    """Return one picture as a binary tensor, its answer binary too."""
    body, header_bytes = tensor_body()
    headers = {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(header_bytes),
    }
    url = f"{server.url}/v2/models/adder/infer"
    return Load(url, body, connections=4, duration_s=1, headers=headers)


def tensor_body() -> tuple[bytes, int]:
    """Return a V2 request with one row of 150528 numbers, and how long its JSON header is."""
    data = bytes(4 * PICTURE_VALUES)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, PICTURE_VALUES]}
    header = orjson.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    )
    return header + data, len(header)


@contextmanager
def echo_server() -> Iterator[tuple[str, int]]:
    """Run the bare echo server for as long as the block lasts; yield its URL and process id."""
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.echo", str(port)])
    try:
        wait_until_answering(url)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(30)


def wait_until_answering(url: str, timeout_s: float = 30.0) -> None:
    """Return when a server answers.

    Raises:
        ServerError: it does not within the time.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            httpx.get(url, trust_env=False)
        except httpx.TransportError as error:
            if time.monotonic() > deadline_s:
                raise ServerError(f"nothing answers at {url} after {timeout_s:g} s") from error
            time.sleep(0.05)
        else:
            return


def plural(connections: int) -> str:
    """Name a number of connections."""
    return f"{connections} connection{'s' if connections != 1 else ''}"


def publish(rows: Sequence[Row], here: Mapping[str, Any]) -> None:
    """Print table and targets, and write the results file."""
    print("\n".join(table(rows)), end="\n\n")
    print("\n".join(target.line(rows) for target in TARGETS), end="\n\n")
    path = ROOT / "benchmarks/results" / f"serve-{slug(here['machine'])}-{here['date']}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document(rows, TARGETS, here), indent=2) + "\n")
    print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
