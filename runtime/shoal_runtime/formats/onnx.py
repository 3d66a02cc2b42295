"""The ONNX format, run by onnxruntime."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.columns import TEXT
from shoal_runtime.formats.library_device import CPU, cuda_index
from shoal_runtime.formats.onnx_binding import BoundSession
from shoal_runtime.formats.onnx_rows import ROWS, UNKNOWN, trace_rows
from shoal_runtime.formats.onnx_session import open_session
from shoal_runtime.formats.source import (
    LoadedModel,
    ModelSource,
    check_static_batch,
    reject_mixed_rows,
    rows_are_proven,
)
from shoal_runtime.formats.table import model_file
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_schema.resource.model import ModelFormat as Format
from shoal_schema.wire.datatypes import Array

DATATYPES: Final = {
    "tensor(bool)": "BOOL",
    "tensor(double)": "FP64",
    "tensor(float)": "FP32",
    "tensor(float16)": "FP16",
    "tensor(string)": "BYTES",
    **{f"tensor({kind}{bits})": f"{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
DYNAMIC: Final = (
    "export with a dynamic batch from an example of two rows: torch.onnx.export(model, (example,),"
    ' "model.onnx", dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},))'
)

logger = logging.getLogger(__name__)


class OnnxHandler:
    """Handler that runs a session of onnxruntime, or a bound one."""

    def __init__(self, session: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._names = [spec.name for spec in outputs]
        self._session = session

    def forward(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Run the graph on a batch, and return its outputs by name."""
        return dict(zip(self._names, self._session.run(self._names, dict(batch)), strict=True))


def load(source: ModelSource) -> LoadedModel:
    """Load an ONNX model.

    Raises:
        LoadError: the file is corrupt or has an unsupported opset; the required provider does not start; an input has
            no batch dimension; an operator selects rows by their values or mixes rows; or onnxruntime is not installed.
    """
    path = model_file(source, Format.ONNX)
    # Before the session, so that two copies of the weights are never in memory.
    traced = trace_rows(path, {spec.name: spec.batch_dim for spec in source.inputs})
    session, device = open_session(path, source)
    inputs = list(source.inputs)
    for node in () if inputs else session.get_inputs():
        if node.type not in DATATYPES or not node.shape:
            raise LoadError(f"input {node.name} of the graph is {node.type} of shape {node.shape}, without rows")
        inputs.append(_spec(node))
    check_static_batch(source, path.name, inputs, DYNAMIC)
    free = all(spec.shape[spec.batch_dim] == ANY for spec in inputs)
    outputs = source.outputs or _outputs(session.get_outputs(), path, free=free)
    proven = rows_are_proven(source, inputs, {spec.name: _selected(spec, inputs, traced.dims) for spec in outputs})
    reject_mixed_rows(
        source, inputs, {spec.name: traced.mixed[spec.name] for spec in outputs if spec.name in traced.mixed}
    )
    # Texts exist only in host memory.
    bound = device.name != CPU and all(spec.datatype != "BYTES" for spec in (*inputs, *outputs))
    runner = BoundSession(session, "cuda", cuda_index(device.name)) if bound else session
    handler = OnnxHandler(runner, inputs, outputs)
    return LoadedModel(handler, inputs, outputs, "onnx", rows_proven=proven, device=device)


def _selected(spec: TensorSpec, inputs: Sequence[TensorSpec], traced: Mapping[str, Sequence[str]]) -> str | None:
    """Return the name of the operator that selects rows for an output.

    Such an operator, for example NonZero, returns a number of rows that depends on the values in the batch.

    Returns:
        The operator's name, "" if the output has one row per row of the batch, None if unknown.
    """
    dims = traced.get(spec.name, ())
    dim = dims[spec.batch_dim] if spec.batch_dim < len(dims) else UNKNOWN
    rows = inputs[0].shape[inputs[0].batch_dim]
    if dim in (ROWS, str(rows)):
        return ""
    return dim if dim and not dim.isdigit() else None


def _outputs(nodes: Iterable[Any], path: Path, *, free: bool) -> list[TensorSpec]:
    """Return specifications of the outputs that can be served.

    Outputs that are not tensors, or have no batch dimension, are omitted with a warning. If ``free`` is set, the batch
    dimension of the others has any size.
    """
    made = []
    for node in nodes:
        if node.type not in DATATYPES or (node.shape is not None and not len(node.shape)):
            logger.warning(
                "event=output_left_out message=%s has the output %s, a %s without rows, which is not served;"
                " convert scikit-learn models with the option zipmap: False",
                path.name,
                node.name,
                node.type,
            )
            continue
        made.append(_spec(node, free=free))
    return made


def _spec(node: Any, *, free: bool = False) -> TensorSpec:
    shape = [size if isinstance(size, int) and size > 0 else ANY for size in node.shape]
    datatype = DATATYPES[node.type]
    return TensorSpec(
        node.name, datatype, [ANY, *shape[1:]] if free else shape, content_type=TEXT if datatype == "BYTES" else None
    )
