"""ResNet-50 as an ONNX file, and onnxruntime's own loop over it: ``python -m benchmarks.gpu.onnx_loop``.

`export FILE` writes the file. `measure FILE` runs batches of the largest size from numpy arrays to numpy arrays, and
prints one line of JSON.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gpu.cases import Case, find_case, rows_of
from benchmarks.gpu.loops import BATCHES, SEED, WARM_UP_S
from benchmarks.gpu.networks import build

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class Positional(nn.Module):
    """Network with a positional input, as the exporter needs it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output."""
        found: Tensor = self.network(x=x)
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Export, or measure and print."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu.onnx_loop", description=__doc__)
    parser.add_argument("action", choices=("export", "measure"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--quick", action="store_true", help="tiny network")
    options = parser.parse_args(arguments)
    case = find_case("resnet", quick=options.quick)
    if options.action == "export":
        export(case, options.file)
    else:
        json.dump(measure(case, options.file, options.device, options.seconds), sys.stdout)
    return 0


def export(case: Case, path: Path) -> None:
    """Write the network with a batch of any size, in FP32."""
    example = torch.zeros(2, *case.shape, dtype=torch.uint8)
    free = {"x": {0: "batch"}, "y": {0: "batch"}}
    with warnings.catch_warnings():
        # The exporter through torch.export needs onnxscript; this one is deprecated, and needs onnx alone.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Positional(build(case, torch.device("cpu"))),
            (example,),
            str(path),
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes=free,
        )


def measure(case: Case, path: Path, device: str, seconds: float) -> dict[str, float]:
    """Return the rate of a loop over `InferenceSession.run`."""
    import onnxruntime  # noqa: PLC0415, after torch, whose CUDA libraries it then finds

    provider = PROVIDERS[device.partition(":")[0]]
    session = onnxruntime.InferenceSession(str(path), providers=[provider])
    if session.get_providers()[0] != provider:
        raise SystemExit(f"onnxruntime has not loaded {provider}; its log states the reason")
    rows = [row["x"] for row in rows_of(case, case.batch_rows, SEED)]
    batches = [np.stack(rows[shift:] + rows[:shift]) for shift in range(BATCHES)]
    count = 0
    started_s = measured_s = time.monotonic()
    for batch in cycle(batches):
        session.run(None, {"x": batch})
        now_s = time.monotonic()
        if now_s - started_s < WARM_UP_S:
            measured_s = now_s
            continue
        count += 1
        if now_s - measured_s >= seconds:
            break
    elapsed_s = time.monotonic() - measured_s
    return {"rows_per_s": count * case.batch_rows / elapsed_s, "batch_ms": 1e3 * elapsed_s / count}


if __name__ == "__main__":
    sys.exit(main())
