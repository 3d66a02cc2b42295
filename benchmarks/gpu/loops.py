"""Run a model in a loop without a server: ``python -m benchmarks.gpu.loops resnet``.

Each step copies a batch of the largest size from pinned memory to the device, runs the network, copies the results to
pinned memory, and waits. Nothing overlaps. The loop prints one line of JSON. It is a process of its own, so that the
device is free afterwards.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import profile

from benchmarks.gpu.cases import CASES, Case, Row, batches_by_bucket, bucket_of, find_case, rows_of
from benchmarks.gpu.networks import build
from benchmarks.gpu.tracing import TRACE, TRACE_S, activities, idle_time, load_tracer, read_events

MODES = ("graphs", "eager")
WARM_UP_S = 0.5
BATCHES = 8
"""Different batches, used in turn."""
SENTENCES = 4096
SEED = 5

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A batch in host memory, and its tokens that are not padding."""

    tensors: Batch
    tokens: int


class Loop:
    """A network, the memory of its inputs and results, and its CUDA graphs by the shape of the batch."""

    def __init__(self, network: nn.Module, device: torch.device, *, graphs: bool) -> None:
        self._network = network
        self._device = device
        self._captures = graphs
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}
        self._results: dict[Any, Tensor] = {}

    def prepare(self, batch: Batch) -> None:
        """Capture the graph of this shape, and allocate its results."""
        inputs = {name: tensor.to(self._device) for name, tensor in batch.items()}
        form = self._form(batch)
        if form in self._results:
            return
        output = self._network(**inputs)
        if self._captures:
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            # The capture needs libraries that are warm on its stream.
            with torch.cuda.stream(stream):
                self._network(**inputs)
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                output = self._network(**inputs)
            self._graphs[form] = graph, inputs, output
        self._results[form] = torch.empty(output.shape, pin_memory=self._device.type == "cuda")

    def step(self, batch: Batch) -> Tensor:
        """Run a batch from host memory to host memory."""
        result = self._results[self._form(batch)]
        result.copy_(self.forward(batch), non_blocking=True)
        self.wait()
        return result

    def forward(self, batch: Batch) -> Tensor:
        """Start to copy a batch and to run the network; return the results on the device."""
        if (held := self._graphs.get(self._form(batch))) is not None:
            graph, inputs, output = held
            for name, tensor in batch.items():
                inputs[name].copy_(tensor, non_blocking=True)
            graph.replay()
            return output
        found: Tensor = self._network(**{name: t.to(self._device, non_blocking=True) for name, t in batch.items()})
        return found

    def wait(self) -> None:
        """Wait until the device has done all."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @staticmethod
    def _form(batch: Batch) -> tuple[int, ...]:
        return tuple(next(iter(batch.values())).shape)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu.loops", description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mode", choices=MODES, default="graphs")
    parser.add_argument("--order", choices=("arrival", "bucket"), default="bucket", help="of rows of different lengths")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--trace", action="store_true", help="measure only how long the device is idle")
    parser.add_argument("--quick", action="store_true", help="tiny network")
    options = parser.parse_args(arguments)
    case, device = find_case(options.case, quick=options.quick), torch.device(options.device)
    if options.trace:
        load_tracer()
    with torch.inference_mode():
        loop = Loop(build(case, device), device, graphs=options.mode == "graphs")
        batches = host_batches(case, options.order, pinned=device.type == "cuda")
        for batch in batches:
            loop.prepare(batch.tensors)
        repeat(loop.step, batches, WARM_UP_S)
        found = traced(loop, batches) if options.trace else measure(loop, batches, case.batch_rows, options.seconds)
        json.dump(found, sys.stdout)
    return 0


def measure(loop: Loop, batches: Sequence[HostBatch], batch_rows: int, seconds: float) -> dict[str, float]:
    """Return rates of whole steps, and the time of the network alone."""
    count, tokens, elapsed_s = repeat(loop.step, batches, seconds)
    return {
        "rows_per_s": count * batch_rows / elapsed_s,
        "batch_ms": 1e3 * elapsed_s / count,
        **({"tokens_per_s": tokens / elapsed_s} if tokens else {}),
        "forward_ms": forward_ms(loop, batches, seconds / 3),
    }


def traced(loop: Loop, batches: Sequence[HostBatch]) -> dict[str, float]:
    """Return the device's idle time, while a trace slows down the loop."""
    with profile(activities=activities()) as profiled:
        repeat(loop.step, batches, TRACE_S)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / TRACE
        profiled.export_chrome_trace(str(path))
        return idle_time(read_events(path))


def repeat(run: Callable[[Batch], object], batches: Sequence[HostBatch], seconds: float) -> tuple[int, int, float]:
    """Run batches in turn for so long; return how many, their tokens, and the time that it took."""
    started_s, count, tokens = time.monotonic(), 0, 0
    for batch in cycle(batches):
        run(batch.tensors)
        count, tokens = count + 1, tokens + batch.tokens
        if (elapsed_s := time.monotonic() - started_s) >= seconds:
            return count, tokens, elapsed_s
    raise ValueError("no batch")


def forward_ms(loop: Loop, batches: Sequence[HostBatch], seconds: float) -> float:
    """Return the mean time of the copy to the device and the network, with the device never waiting for the host."""
    loop.wait()
    started_s, count = time.monotonic(), 0
    for batch in islice(cycle(batches), 1_000_000):
        loop.forward(batch.tensors)
        count += 1
        # One wait for several batches: the next ones are queued meanwhile.
        if count % BATCHES == 0:
            loop.wait()
            if time.monotonic() - started_s >= seconds:
                break
    return 1e3 * (time.monotonic() - started_s) / count


def host_batches(case: Case, order: str, *, pinned: bool) -> list[HostBatch]:
    """Return batches of random rows, in pinned memory for a GPU."""
    if not case.ragged:
        rows = rows_of(case, case.batch_rows, SEED)
        stacked = [np.stack([row[case.input_name] for row in rows[shift:] + rows[:shift]]) for shift in range(BATCHES)]
        return [host_batch({case.input_name: values}, tokens_of(case), pinned=pinned) for values in stacked]
    rows = rows_of(case, max(64 * case.batch_rows, SENTENCES), SEED)
    if order == "bucket":
        groups = list(batches_by_bucket(rows, case.batch_rows, case.input_name))
    else:
        groups = [rows[start : start + case.batch_rows] for start in range(0, len(rows), case.batch_rows)]
    return [padded(group, case.input_name, pinned=pinned) for group in groups if len(group) == case.batch_rows]


def tokens_of(case: Case) -> int:
    """Return the tokens of a batch of rows of one length; 0 for rows of other kinds."""
    return case.batch_rows * case.shape[0] if case.kind == "encoder" else 0


def padded(rows: Sequence[Row], name: str, *, pinned: bool) -> HostBatch:
    """Return rows of different lengths as a batch, padded to the bucket of the longest, with their mask."""
    lengths = [len(row[name]) for row in rows]
    tokens = np.zeros((len(rows), bucket_of(max(lengths))), np.int64)
    mask = np.zeros_like(tokens)
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        tokens[index, :length], mask[index, :length] = row[name], 1
    return host_batch({name: tokens, "attention_mask": mask}, sum(lengths), pinned=pinned)


def host_batch(values: Mapping[str, np.ndarray[Any, Any]], tokens: int, *, pinned: bool) -> HostBatch:
    """Return arrays as a batch in host memory."""
    tensors = {name: torch.from_numpy(each) for name, each in values.items()}
    return HostBatch({name: each.pin_memory() if pinned else each for name, each in tensors.items()}, tokens)


if __name__ == "__main__":
    sys.exit(main())
