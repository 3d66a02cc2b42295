"""The pieces of the benchmark: each takes at most eight minutes, and yields its figures as it measures them."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import CASES, Case, closed_name, find_case
from benchmarks.gpu.serving import Effort, served, served_model, trace_served
from benchmarks.report import Target
from shoal_schema.resource.runtime import RuntimeSpec

LOOP_LIMIT_S = 120.0
PATIENCE = 1.5
"""Objective: this times the p99 of the most clients without one, so that it can be met."""
SMALL = ("mlp", "minilm")
"""Models of which one instance leaves a device unused."""

Figures = Mapping[str, float]
Measured = Iterator[tuple[str, Figures | str]]


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of the benchmark.

    Args:
        what: it measures.
        measure: yields the name of each case with its figures, or with the reason why it is skipped.
        targets: the marks, for a number of clients.
    """

    what: str
    measure: Callable[[Effort], Measured]
    targets: Callable[[int], Sequence[Target]]


def model_piece(name: str) -> Piece:
    """Return the piece of one model."""
    return Piece(CASES[name].what, lambda effort: measure_model(name, effort), lambda most: model_targets(name, most))


def model_targets(name: str, most: int) -> Sequence[Target]:
    """Return the marks of a model."""
    return (
        Target(closed_name(name, most), "share_of_loop", 0.95, at_least=True),
        Target(f"{name}, trace", "device_idle", 0.03, at_least=False),
        Target(f"{name}, half load", "p99_batches", 2.0, at_least=False),
    )


def measure_model(name: str, effort: Effort) -> Measured:
    """Measure the loops, the server without and with an objective, and the device's idle time."""
    case = find_case(name, quick=effort.quick)
    best: Figures = {}
    for mode in loop_modes(effort):
        measured = run_loop(case, effort, mode)
        best = best or measured
        yield f"{name}, loop, {mode}", measured
    p99_ms = 0.0
    for load, figures in measure_served(case, effort, best):
        p99_ms = figures["p99_ms"] if load == closed_name(name, effort.most) else p99_ms
        yield load, figures
    if not effort.brief:
        for load, figures in measure_served(case, effort, best, ceil(PATIENCE * p99_ms)):
            yield f"{load}, objective", figures
    yield from traces(case, effort)


def measure_served(
    case: Case, effort: Effort, loop: Figures, objective_ms: int | None = None
) -> Iterator[tuple[str, Figures]]:
    """Measure the server with increasing numbers of clients, then at half of what it served to the most."""
    objective = {} if objective_ms is None else {"objective_ms": float(objective_ms)}
    fields = {} if objective_ms is None else {"batching.latencyObjectiveMilliseconds": str(objective_ms)}
    with served(case, effort, fields) as running:
        capacity_per_s = 0.0
        for clients in effort.clients:
            measured = beside(loop, running.closed(clients))
            capacity_per_s = measured["rows_per_s"]
            estimated = running.estimated_idle(measured) if clients == effort.most else {}
            yield closed_name(case.name, clients), measured | estimated | objective
        # Requests of several rows wait for more batches than the objective allows for.
        for request_rows in () if objective_ms else case.request_rows[1:]:
            measured = beside(loop, running.closed(effort.most, request_rows))
            yield closed_name(case.name, effort.most, request_rows), measured
        measured = running.open(capacity_per_s / 2)
        if "p99_ms" in measured:
            measured["p99_batches"] = measured["p99_ms"] / loop["batch_ms"]
        yield f"{case.name}, half load", measured | objective


def beside(loop: Figures, measured: Figures) -> dict[str, float]:
    """Add the share of the loop's rate."""
    return {**measured, "share_of_loop": measured["rows_per_s"] / loop["rows_per_s"]}


def traces(case: Case, effort: Effort) -> Measured:
    """Measure the device's idle time in the loop and in the runtime."""
    if not effort.device.startswith("cuda"):
        yield f"{case.name}, trace", f"there is no GPU to trace on {effort.device}"
        return
    if not effort.brief:
        yield f"{case.name}, loop, trace", run_loop(case, effort, "graphs", "--trace")
    yield f"{case.name}, trace", trace_served(case, effort) or "the trace holds no work of the GPU"


def measure_sentences(effort: Effort) -> Measured:
    """Measure sentences of mixed lengths, in tokens that are not padding."""
    case = find_case("sentences", quick=effort.quick)
    best: Figures = {}
    for mode in loop_modes(effort):
        for order in ("bucket", "arrival"):
            measured = run_loop(case, effort, mode, f"--order={order}")
            best = best or measured
            yield f"sentences, loop by {order}, {mode}", measured
    per_row = best["tokens_per_s"] / best["rows_per_s"]
    for name, figures in measure_served(case, effort, best):
        yield name, {**figures, "tokens_per_s": figures["rows_per_s"] * per_row}
    yield from traces(case, effort)


def sentence_targets(most: int) -> Sequence[Target]:
    """Return the marks of the sentences."""
    return (
        Target(closed_name("sentences", most), "share_of_loop", 0.95, at_least=True),
        Target("sentences, trace", "device_idle", 0.03, at_least=False),
    )


def measure_instances(effort: Effort) -> Measured:
    """Measure two instances of small models beside one, by turns."""
    for name in SMALL:
        if "instances" not in RuntimeSpec.__struct_fields__:
            yield f"{name}, 2 instances", "this version has no runtime.instances"
            continue
        case, rates = find_case(name, quick=effort.quick), {}
        for count in (1, 2):
            with served(case, effort, {"runtime.instances": str(count)}) as running:
                measured = running.closed(effort.most, case.request_rows[-1])
            rates[count] = measured["rows_per_s"]
            speedup = {"speedup": rates[2] / rates[1]} if count == 2 else {}
            yield f"{name}, {count} instance{'s' if count > 1 else ''}", measured | speedup


def instance_targets(_most: int) -> Sequence[Target]:
    """Return the marks of two instances."""
    return tuple(Target(f"{name}, 2 instances", "speedup", 1.3, at_least=True) for name in SMALL)


def measure_onnx(effort: Effort) -> Measured:
    """Measure ResNet-50 as an ONNX file beside onnxruntime's own loop."""
    if reason := onnx_hindrance(effort.device):
        yield "onnx", reason
        return
    case = find_case("resnet", quick=effort.quick)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as directory:
        path = Path(directory) / "model.onnx"
        run_module("benchmarks.gpu.onnx_loop", "export", str(path), *quick_option(effort))
        options = (f"--device={effort.device}", f"--seconds={effort.duration_s}", *quick_option(effort))
        loop = run_module("benchmarks.gpu.onnx_loop", "measure", str(path), *options)
        yield "onnx, loop", loop
        with served_model(path, case, effort, {}) as running:
            for clients in effort.clients:
                yield closed_name("onnx", clients), beside(loop, running.closed(clients))


def onnx_hindrance(device: str) -> str | None:
    """Return why ONNX models cannot be measured here; None if they can."""
    if absent := [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]:
        return f"{' and '.join(absent)} not installed"
    import onnxruntime  # noqa: PLC0415, it may be missing

    if device.startswith("cuda") and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return f"onnxruntime {onnxruntime.__version__} has no CUDAExecutionProvider"
    return None


def onnx_targets(most: int) -> Sequence[Target]:
    """Return the mark of ONNX models."""
    return (Target(closed_name("onnx", most), "share_of_loop", 0.95, at_least=True),)


def loop_modes(effort: Effort) -> Sequence[str]:
    """Return the modes of the loop, the one to compare with first."""
    if not effort.device.startswith("cuda"):
        return ("eager",)
    return ("graphs",) if effort.brief else ("graphs", "eager")


def run_loop(case: Case, effort: Effort, mode: str, *more: str) -> dict[str, float]:
    """Run a loop in a process of its own."""
    options = (f"--device={effort.device}", f"--mode={mode}", f"--seconds={effort.duration_s}", *more)
    return run_module("benchmarks.gpu.loops", case.name, *options, *quick_option(effort))


def quick_option(effort: Effort) -> tuple[str, ...]:
    """Return the option for tiny networks."""
    return ("--quick",) if effort.quick else ()


def run_module(module: str, *arguments: str) -> dict[str, Any]:
    """Return what a module prints as JSON in its last line; empty if it prints nothing.

    Raises:
        subprocess.SubprocessError: it failed, or took too long.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LOOP_LIMIT_S)
    if done.returncode != 0:
        raise subprocess.SubprocessError(f"{' '.join(command[2:])} failed: {done.stderr.strip()[-800:]}")
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
    return printed


PIECES: Mapping[str, Piece] = {
    **{name: model_piece(name) for name in ("resnet", "bert", "minilm", "mlp", "detector")},
    "sentences": Piece(CASES["sentences"].what, measure_sentences, sentence_targets),
    "instances": Piece("two instances of small models beside one", measure_instances, instance_targets),
    "onnx": Piece("ResNet-50 as ONNX beside onnxruntime's own loop", measure_onnx, onnx_targets),
}
"""Name -> piece."""
