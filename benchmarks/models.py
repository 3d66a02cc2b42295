"""Serve the example models to many callers, and compare with a bare loop: ``make bench-models``.

Real inputs (photographs to `cat`, sentences to `embed`) go to ``shoal serve`` in closed loop, at the
batch size that a loop without a server (`benchmarks.bare`) finds best, with the same threads. Loop
and server alternate, so that a machine that slows down slows both. Two ratios: to the loop that does
the same work (bytes in, answers out), and to `forward` alone on tensors that are ready, which nobody
reaches whose preprocessing needs the same cores. Where a target is missed, the processor time of each
part says where the time goes. ``--device cuda`` measures a GPU.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import torch

from benchmarks.inputs import INPUTS
from benchmarks.processes import cpu_s, find_child
from benchmarks.report import Row, Target, document, make_row, mean_batch_rows, slug, table
from benchmarks.serve import batch_sums
from benchmarks.surroundings import surroundings
from benchmarks.wrk import Load, Wrk, WrkError, find_wrk
from examples.server import Server, ServerError, serving

ROOT = Path(__file__).parents[1]
SIZES = {"cpu": "1,2,4,8,16,32", "cuda": "8,16,32,64,128,256"}
BATCHES_AT_ONCE = 3
"""Callers per row of a batch: one batch runs, one waits, and one is on its way."""
ROUNDS = 4
BARE_TIMEOUT_S = 300.0
PATIENCE_S = 60
TARGETS = tuple(
    Target(model, f"ratio_to_{loop}", 0.95, at_least=True) for model in INPUTS for loop in ("whole", "forward")
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and for how long.

    Args:
        device: cpu, cuda or cuda:N.
        threads: for torch's operations, in the loop and in the server.
        duration_s: of each load.
        repetitions: pairs of loop and server.
    """

    wrk: Wrk
    device: str
    threads: int
    duration_s: int
    repetitions: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 when it ran, whether or not targets are met."""
    options = parse(arguments)
    # What `kill` sends ends like Ctrl-C: through the with blocks, which stop loop and server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    here = surroundings() | {"device": device_name(options.device), "threads": options.threads}
    try:
        seconds, repetitions = (2, 1) if options.quick else (8, 3)
        plan = Plan(find_wrk(ROOT / ".tools"), options.device, options.threads, seconds, repetitions)
        rows = [measure(model, plan) for model in options.only]
    except (WrkError, ServerError, subprocess.SubprocessError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    publish(rows, here, keep=not options.quick)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser("python -m benchmarks.models", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(INPUTS), default=list(INPUTS), help="models")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="for torch's operations")
    parser.add_argument("--quick", action="store_true", help="one short pair, and nothing is written")
    return parser.parse_args(arguments)


def device_name(device: str) -> str:
    """Name what the models run on."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


def measure(model: str, plan: Plan) -> Row:
    """Measure loop and server in turn; the first loop finds the batch size for all."""
    sizes = SIZES[plan.device.partition(":")[0]]
    repetitions = []
    for _ in range(plan.repetitions):
        bare = run_bare(model, plan, sizes)
        sizes = str(bare["batch_size"])
        served = run_served(model, at_least_rounds(plan, bare), bare["batch_size"])
        ratios = {f"ratio_to_{loop}": served["rows_per_s"] / bare[f"{loop}_per_s"] for loop in ("whole", "forward")}
        loops = {f"bare_{name}": value for name, value in bare.items() if isinstance(value, float)}
        repetitions.append({**ratios, **served, **loops, "batch_size": float(bare["batch_size"])})
        print(f"{model}: {', '.join(f'{name} {value:.3g}' for name, value in repetitions[-1].items())}", flush=True)
    return make_row(model, repetitions)


def at_least_rounds(plan: Plan, bare: Mapping[str, Any]) -> Plan:
    """Return the plan with time for every caller to be answered ROUNDS times, on a slow machine too."""
    callers = BATCHES_AT_ONCE * bare["batch_size"]
    return replace(plan, duration_s=max(plan.duration_s, ceil(ROUNDS * callers / bare["whole_per_s"])))


def run_bare(model: str, plan: Plan, sizes: str) -> dict[str, Any]:
    """Run the loop in a process of its own."""
    options = [f"--device={plan.device}", f"--threads={plan.threads}", f"--seconds={plan.duration_s / 2}"]
    command = [sys.executable, "-m", "benchmarks.bare", model, *options, f"--sizes={sizes}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BARE_TIMEOUT_S)
    if result.returncode != 0:
        raise subprocess.SubprocessError(f"the bare loop failed: {result.stderr.strip()[-500:]}")
    measured: dict[str, Any] = json.loads(result.stdout)
    return measured


def run_served(model: str, plan: Plan, batch_size: int) -> dict[str, float]:
    """Serve the model and load it."""
    fields = {
        "batching.maxBatchSize": str(batch_size),
        "runtime.device": plan.device,
        "runtime.threads": str(plan.threads),
    }
    with serving(ROOT / "examples" / model, fields=fields) as server:
        load = requests(model, server, BATCHES_AT_ONCE * batch_size, plan.duration_s)
        plan.wrk.run(load)
        cpu = {name: cpu_of(server, name) for name in ("proxy", "runtime")}
        before_s = {name: read() for name, read in cpu.items()}
        batches = batch_sums(server.metrics())
        measured = plan.wrk.run(load)
        mean_batch = mean_batch_rows(batches, batch_sums(server.metrics()))
        used_s = {name: read() - before_s[name] for name, read in cpu.items()}
    return {
        "rows_per_s": measured.requests_per_s,
        "p50_ms": measured.p50_ms,
        "p99_ms": measured.p99_ms,
        "mean_batch_rows": mean_batch,
        **{f"{name}_cpu_ms_per_row": 1e3 * used / measured.requests for name, used in used_s.items()},
    }


def requests(model: str, server: Server, connections: int, duration_s: int) -> Load:
    """Return a load of the model's real inputs, one per request, in turn."""
    inputs = INPUTS[model]
    first, *rest = [inputs.encode(item) for item in inputs.items()]
    url = f"{server.url}/v1/models/{model}:predict"
    headers = {"content-type": inputs.content_type}
    return Load(url, first, connections, duration_s, headers, rest, PATIENCE_S)


def cpu_of(server: Server, name: str) -> Callable[[], float]:
    """Return what reads the processor time of the server's proxy or runtime."""
    pid = find_child(server.pid, f"shoal_{name}")
    return lambda: cpu_s(pid)


def publish(rows: Sequence[Row], here: Mapping[str, Any], *, keep: bool) -> None:
    """Print table and targets, and write the results file."""
    print("\n".join(["", *table(rows), ""]))
    print("\n".join(target.line(rows) for target in TARGETS if target.case in {row.case for row in rows}))
    if keep:
        name = slug(f"{here['machine']} {'' if here['device'] == 'cpu' else here['device']} {here['date']}")
        path = ROOT / "benchmarks/results" / f"models-{name}.json"
        path.write_text(json.dumps(document(rows, TARGETS, here), indent=2) + "\n")
        print(f"\nwritten: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("benchmark: stopped")
