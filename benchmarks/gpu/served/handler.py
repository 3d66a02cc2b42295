"""One of the benchmark's networks (`benchmarks.gpu.networks`), as a handler."""

from pathlib import Path

import torch

from benchmarks.gpu.cases import BUCKETS, find_case
from benchmarks.gpu.networks import build
from benchmarks.gpu.tracing import trace_on_request
from shoal_runtime import Context, TensorSpec


class Served:
    """Network of the case in `context.parameters`; `trace` is the directory for a trace of the device."""

    cuda_graphs = True

    def load(self, context: Context) -> None:
        """Build the network, and declare its inputs."""
        case = find_case(context.parameters["case"], quick=bool(context.parameters.get("quick")))
        if directory := context.parameters.get("trace"):
            trace_on_request(Path(directory))
        self._network = build(case, context.device)
        self.outputs = [TensorSpec("y", "FP32", [-1, *case.outputs])]
        if case.ragged:
            self.inputs = [
                TensorSpec(
                    case.input_name, "INT64", [-1, -1], pad_axis=1, pad_buckets=BUCKETS, pad_mask="attention_mask"
                ),
                TensorSpec("attention_mask", "INT64", [-1, -1], pad_axis=1, pad_buckets=BUCKETS),
            ]
        else:
            self.inputs = [TensorSpec(case.input_name, case.datatype, [-1, *case.shape])]

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return `y`."""
        y: torch.Tensor = self._network(**batch)
        return y
