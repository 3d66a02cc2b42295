"""Serve the example models to many clients, and compare with a bare loop: ``make bench-models``.

Real inputs (photographs to `cat`, sentences to `embed`) go to ``shoal serve`` in closed loop, at the
batch size that a loop without a server (`benchmarks.bare`) finds best, with the same threads. Loops
and server alternate, so that a machine that slows down slows all. Three ratios: to the loop that does
the same work (bytes in, answers out) with torch as it comes; to `forward` alone on tensors that are
ready, a bound that is out of reach if preprocessing needs the same cores; and to the loop of the same work
that keeps memory and waits as the runtime does, which measures the cost of serving itself. Where a target
is missed, the processor time of each part says where the time goes. ``--device cuda`` measures a GPU.

Beside them one row for each format that is served without code (`benchmarks.formats`), on the CPU, compared with the
library's own `predict` in a loop: of bytes in, answers out, and of rows that are ready. They have no mark: of a row
that takes microseconds, HTTP is most.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch

from benchmarks.formats import CASES
from benchmarks.inputs import INPUTS, Inputs
from benchmarks.report import Row, Target, document, make_row, slug, table
from benchmarks.steady import under_load
from benchmarks.surroundings import surroundings
from benchmarks.wrk import Load, Wrk, WrkError, find_wrk
from examples.server import Server, ServerError, serving
from shoal_runtime.execution.threads import wait_briefly

ROOT = Path(__file__).parents[1]
SIZES = {"cpu": "1,2,4,8,16,32", "cuda": "8,16,32,64,128,256"}
BATCHES_AT_ONCE = 3
"""Clients per row of a batch: one batch runs, one waits, and one is on its way."""
LOOPS = ("bare", "tuned")
BARE_TIMEOUT_S = 300.0
PATIENCE_S = 60
TARGETS = tuple(
    Target(model, f"ratio_to_{loop}", 0.95, at_least=True)
    for model in INPUTS
    for loop in ("whole", "forward", "tuned_whole")
)


@dataclass(frozen=True, slots=True)
class Trials:
    """What to measure, and for how long.

    Args:
        device: cpu, cuda or cuda:N.
        threads: for torch's operations, in the loop and in the server.
        duration_s: of each load.
        repetitions: of the loops and the server in turn.
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
        seconds, repetitions = (2, 1) if options.quick else (6, 3)
        trials = Trials(find_wrk(ROOT / ".tools"), options.device, options.threads, seconds, repetitions)
        rows = [(measure if name in INPUTS else measure_format)(name, trials) for name in options.only]
    except (WrkError, ServerError, subprocess.SubprocessError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    publish(rows, here, keep=not options.quick)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser("python -m benchmarks.models", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*INPUTS, *CASES], default=[*INPUTS, *CASES], help="models")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="for torch's operations")
    parser.add_argument("--quick", action="store_true", help="one short round, and nothing is written")
    return parser.parse_args(arguments)


def device_name(device: str) -> str:
    """Name what the models run on."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


def measure(model: str, trials: Trials) -> Row:
    """Measure both loops and the server in turn; the first loop of each kind finds its batch size."""
    sizes = dict.fromkeys(LOOPS, SIZES[trials.device.partition(":")[0]])
    repetitions = []
    for _ in range(trials.repetitions):
        loops = {loop: run_bare(model, trials, sizes[loop], loop) for loop in LOOPS}
        sizes = {loop: str(measured["batch_size"]) for loop, measured in loops.items()}
        served = run_served(ROOT / "examples" / model, model, INPUTS[model], trials, loops["tuned"])
        repetitions.append(ratios(served["rows_per_s"], loops) | served | flat(loops))
        print(f"{model}: {', '.join(f'{name} {value:.3g}' for name, value in repetitions[-1].items())}", flush=True)
    return make_row(model, repetitions)


def measure_format(name: str, trials: Trials) -> Row:
    """Measure the library's loop and the server in turn, on the same folder."""
    case, sizes, repetitions = CASES[name], SIZES["cpu"], []
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        folder = Path(scratch) / name
        folder.mkdir()
        case.save(folder)
        for _ in range(trials.repetitions):
            loop = run_library(name, folder, trials, sizes)
            sizes = str(loop["batch_size"])
            served = run_served(folder, name, case.inputs, trials, loop)
            compared = {
                f"ratio_to_{each}": served["rows_per_s"] / loop[f"{each}_per_s"] for each in ("whole", "forward")
            }
            repetitions.append(compared | served | flat({"library": loop}))
            print(f"{name}: {', '.join(f'{what} {value:.3g}' for what, value in repetitions[-1].items())}", flush=True)
    return make_row(name, repetitions)


def run_library(name: str, folder: Path, trials: Trials, sizes: str) -> dict[str, Any]:
    """Run the library's loop in a process of its own."""
    options = [f"--seconds={trials.duration_s / 2}", f"--sizes={sizes}"]
    # What libraries without torch go by, too.
    environ = {**os.environ, "OMP_NUM_THREADS": str(trials.threads)}
    return measured([sys.executable, "-m", "benchmarks.formats", name, str(folder), *options], environ)


def ratios(rows_per_s: float, loops: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return how the server compares with each loop."""
    bare, tuned = (loops[loop] for loop in LOOPS)
    rates = {"whole": bare["whole_per_s"], "forward": bare["forward_per_s"], "tuned_whole": tuned["whole_per_s"]}
    return {f"ratio_to_{name}": rows_per_s / rate for name, rate in rates.items()}


def flat(loops: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return what the loops measured, each name with its loop's."""
    return {
        f"{loop}_{name}": float(value)
        for loop, measured in loops.items()
        for name, value in measured.items()
        if isinstance(value, int | float)
    }


def run_bare(model: str, trials: Trials, sizes: str, loop: str) -> dict[str, Any]:
    """Run a loop in a process of its own."""
    options = [f"--device={trials.device}", f"--threads={trials.threads}", f"--seconds={trials.duration_s / 2}"]
    environ = dict(os.environ)
    if loop == "tuned":
        options.append("--tuned")
        wait_briefly(environ)
    command = [sys.executable, "-m", "benchmarks.bare", model, *options, f"--sizes={sizes}"]
    return measured(command, environ)


def measured(command: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what a loop's process prints."""
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=BARE_TIMEOUT_S)
    if result.returncode != 0:
        raise subprocess.SubprocessError(f"the bare loop failed: {result.stderr.strip()[-500:]}")
    printed: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return printed


def run_served(folder: Path, name: str, inputs: Inputs, trials: Trials, loop: Mapping[str, Any]) -> dict[str, float]:
    """Serve the folder with the batch size of that loop, and load it."""
    batch_size = loop["batch_size"]
    fields = {
        "batching.maxBatchSize": str(batch_size),
        "runtime.device": trials.device,
        "runtime.threads": str(trials.threads),
    }
    batch_s = batch_size / loop["whole_per_s"]
    warm_up_s, window_s = (max(trials.duration_s * share, count * batch_s) for share, count in ((0.3, 4), (1, 12)))
    # A reserve for a machine that becomes slower meanwhile: the window must end under load.
    duration_s = ceil(1.3 * (warm_up_s + window_s) + BATCHES_AT_ONCE * batch_s)
    with serving(folder, fields=fields) as server:
        load = requests(name, inputs, server, BATCHES_AT_ONCE * batch_size, duration_s)
        return under_load(trials.wrk, load, server, warm_up_s=warm_up_s, window_s=window_s)


def requests(name: str, inputs: Inputs, server: Server, connections: int, duration_s: int) -> Load:
    """Return a load of these inputs, one per request, in turn."""
    first, *rest = [inputs.encode(item) for item in inputs.items()]
    url = f"{server.url}/v1/models/{name}:predict"
    headers = {"content-type": inputs.content_type}
    return Load(url, first, connections, duration_s, headers, rest, PATIENCE_S)


def publish(rows: Sequence[Row], here: Mapping[str, Any], *, keep: bool) -> None:
    """Print table and targets, and write the results file."""
    print("\n".join(["", *table(rows), ""]))
    print("\n".join(target.line(rows) for target in TARGETS if target.case in {row.case for row in rows}))
    if keep:
        for kind, names in {"models": INPUTS, "formats": CASES}.items():
            write(kind, [row for row in rows if row.case in names], here)


def write(kind: str, rows: Sequence[Row], here: Mapping[str, Any]) -> None:
    """Write the results file of the examples or the formats; nothing where none of them was measured."""
    if not rows:
        return
    name = slug(f"{here['machine']} {'' if here['device'] == 'cpu' else here['device']} {here['date']}")
    path = ROOT / "benchmarks/results" / f"{kind}-{name}.json"
    targets = [target for target in TARGETS if target.case in {row.case for row in rows}]
    path.write_text(json.dumps(document(rows, targets, here), indent=2) + "\n")
    print(f"\nwritten: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("benchmark: stopped")
