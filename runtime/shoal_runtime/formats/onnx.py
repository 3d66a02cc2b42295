"""The ONNX format, run by onnxruntime."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import exception_message
from shoal_runtime.formats.columns import TEXT
from shoal_runtime.formats.external_data import linked_files, mapped
from shoal_runtime.formats.onnx_rows import ROWS, UNKNOWN, trace_rows
from shoal_runtime.formats.source import (
    LoadedModel,
    ModelSource,
    check_static_batch,
    reject_mixed_rows,
    rows_are_proven,
    unreadable_reason,
)
from shoal_runtime.formats.table import model_file
from shoal_runtime.formats.tabular import imported
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
QUIET: Final = 3
"""Log level for errors only: warnings about graphs come by the thousand, and users cannot act on them."""
EXTERNAL: Final = "external"
"""Word in onnxruntime's errors about external data."""
DYNAMIC: Final = (
    "export with a dynamic batch from an example of two rows: torch.onnx.export(model, (example,),"
    ' "model.onnx", dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},))'
)

logger = logging.getLogger(__name__)


class OnnxHandler:
    """Handler that runs an onnxruntime session."""

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
        LoadError: the file is corrupt or has an unsupported opset; an input has no batch dimension; an operator selects
            rows by their values or mixes rows; or onnxruntime is not installed.
    """
    path = model_file(source, Format.ONNX)
    # Before the session, so that two copies of the weights are never in memory.
    traced = trace_rows(path, {spec.name: spec.batch_dim for spec in source.inputs})
    session = _session(path, source.context.threads)
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
    return LoadedModel(OnnxHandler(session, inputs, outputs), inputs, outputs, "onnx", rows_proven=proven)


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


def _session(path: Path, threads: int) -> Any:
    onnxruntime = imported("onnxruntime", "onnx")
    try:
        return _opened(onnxruntime, path, _options(onnxruntime, threads))
    except Exception as error:  # onnxruntime's exceptions have no common base
        reason = unreadable_reason(path) or exception_message(error)
        if EXTERNAL not in reason.lower() or not (files := linked_files(path)):
            raise LoadError(_refused(path.name, reason, onnxruntime.__version__)) from None
    # Weights behind links, which onnxruntime does not follow out of the model's directory.
    names, contents, sizes = mapped(files)
    options = _options(onnxruntime, threads)
    options.add_external_initializers_from_files_in_memory(names, contents, sizes)
    try:
        return _opened(onnxruntime, path, options)
    except Exception as error:
        raise LoadError(_refused(path.name, exception_message(error), onnxruntime.__version__)) from None


def _opened(onnxruntime: Any, path: Path, options: Any) -> Any:
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _options(onnxruntime: Any, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads must sleep, since other containers share the cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = QUIET
    return options


def _refused(name: str, why: str, version: str) -> str:
    found = re.search(r"Opset (\d+) is under .* till opset (\d+)", why)
    if found:
        return (
            f"{name} is of opset {found[1]}; onnxruntime {version} supports opsets up to {found[2]}. Export it with"
            f" opset_version={found[2]}, or install a later onnxruntime"
        )
    # onnxruntime's errors begin with codes and the position in its sources.
    reason = re.sub(r"^.*?(failed:|[A-Z_]+ : (?!.*failed:))(\S+\.(cc|h):\d+ .*?\) )?", "", why.strip().splitlines()[0])
    return (
        f"{name} is not an ONNX model that onnxruntime {version} can run: {reason.rstrip('.')}."
        " Copy it here again, or export it again"
    )


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
