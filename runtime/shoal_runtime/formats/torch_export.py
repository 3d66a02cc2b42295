"""The `torch.export` format: exported programs (.pt2), whose file holds the signature."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.compiled_package import load_compiled, native_records
from shoal_runtime.formats.module import name_outputs, require_tensors
from shoal_runtime.formats.program_mixing import find_mixing
from shoal_runtime.formats.source import (
    LoadedModel,
    ModelSource,
    UnreadableFile,
    check_static_batch,
    reject_mixed_rows,
    rows_are_proven,
)
from shoal_runtime.formats.table import model_file
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_runtime.tensors.torch_tensors import DATATYPE_OF
from shoal_schema.resource.model import ModelFormat as Format


class ExportHandler:
    """Handler that runs an exported program."""

    def __init__(
        self, program: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._module = program.module()
        self._in_spec = program.call_spec.in_spec

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the program on a batch, with its inputs nested as in the export."""
        flat = [batch[spec.name] for spec in self.inputs]
        args, kwargs = pytree.tree_unflatten(flat, self._in_spec)
        return name_outputs(pytree.tree_leaves(self._module(*args, **kwargs)), self.outputs)


def load(source: ModelSource) -> LoadedModel:
    """Load an exported program onto the device; or native code of AOTInductor, if the user trusts it.

    Raises:
        LoadError: the file is corrupt, could run code, or has another dtype than requested; or an operator selects rows
            by their values or mixes rows.
    """
    path = model_file(source, Format.TORCH_EXPORT)
    if source.context.dtype is not None:
        raise LoadError("a torch.export program keeps the dtype of its export. Leave SHOAL_RUNTIME_DTYPE at auto")
    # Without the user's trust, `_read` rejects native code.
    if source.allow_pickle and (records := native_records(path)):
        return load_compiled(path, source, records)
    program = _read(path, trusted=source.allow_pickle)
    graph = program.graph_signature
    inputs = source.inputs or _specs(program, graph.user_inputs, list(map(str, graph.user_inputs)))
    # The keys of a dict, or output, or output_0, output_1...
    out_spec, count = program.call_spec.out_spec, len(graph.user_outputs)
    output_names = ["output"] if count == 1 else [f"output_{index}" for index in range(count)]
    if out_spec is not None and out_spec.type is dict and len(out_spec.context) == count:
        output_names = [str(key) for key in out_spec.context]
    outputs = source.outputs or _specs(program, graph.user_outputs, output_names)
    require_tensors(inputs, outputs, path.name)
    for what, specs, names in (("inputs", inputs, graph.user_inputs), ("outputs", outputs, graph.user_outputs)):
        if len(specs) != len(names):
            raise LoadError(f"model.toml declares {len(specs)} {what}; the program has {len(names)}")
    shapes = ", ".join(f'"{spec.name}": {{0: batch}}' for spec in inputs)
    dynamic = (
        'export with a dynamic batch: batch = torch.export.Dim("batch");'
        f" torch.export.export(model, args_of_two_rows, dynamic_shapes={{{shapes}}})"
    )
    check_static_batch(source, path.name, inputs, dynamic)
    min_rows, max_rows = _row_limits(program)
    proven = rows_are_proven(source, inputs, _selected(program, inputs, outputs))
    batch_dims = {str(name): spec.batch_dim for name, spec in zip(graph.user_inputs, inputs, strict=True)}
    found, rows = find_mixing(program, batch_dims), inputs[0].shape[inputs[0].batch_dim]
    mixed = {
        spec.name: found[str(name)]
        for name, spec in zip(graph.user_outputs, outputs, strict=True)
        if str(name) in found and spec.shape[spec.batch_dim] == rows
    }
    reject_mixed_rows(source, inputs, mixed)
    # Programs contain devices as constants, so moving the weights is not enough.
    if source.context.device.type != "cpu":
        program = move_to_device_pass(program, source.context.device)
    handler = ExportHandler(program, inputs, outputs)
    return LoadedModel(handler, inputs, outputs, "pytorch_export", min_rows, max_rows, graphs=True, rows_proven=proven)


def _read(path: Path, *, trusted: bool) -> torch.export.ExportedProgram:
    read: Callable[[Path], torch.export.ExportedProgram] = torch.export.load
    if not trusted:
        try:
            # Uses torch's internals, which other releases may change; no other format depends on it.
            from shoal_runtime.formats.pt2_archive import read_program  # noqa: PLC0415
        except ImportError:
            raise LoadError(
                f"torch {torch.__version__} cannot read an exported program without evaluating it. Install a later"
                " version, or set SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you trust the file"
            ) from None
        read = read_program
    try:
        return read(path)
    except LoadError:
        raise
    except Exception as error:
        raise UnreadableFile(path.name, "torch.export program", error) from None


def _specs(program: torch.export.ExportedProgram, values: Sequence[Any], names: Sequence[str]) -> list[TensorSpec]:
    known = {node.name: node.meta.get("val") for node in program.graph.nodes}
    specs = []
    for name, value in zip(names, values, strict=True):
        tensor = known.get(str(value))
        if not isinstance(tensor, torch.Tensor):
            raise LoadError(f"{name} of the exported program is not a tensor. Wrap the model before exporting")
        if tensor.dtype not in DATATYPE_OF or tensor.dim() == 0:
            raise LoadError(f"{name} of the exported program is {tensor.dtype} with {tensor.dim()} dimensions")
        shape = [size if isinstance(size, int) else ANY for size in tensor.shape]
        specs.append(TensorSpec(name, DATATYPE_OF[tensor.dtype], shape))
    return specs


def _selected(
    program: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> dict[str, str | None]:
    """Find outputs whose number of rows depends on the values in the batch.

    Returns:
        By output name: a description for errors if the number depends on values, "" if it is the number of rows in the
        batch, None if unknown.
    """
    graph = program.graph_signature
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    rows = {_size(values[str(name)], spec) for name, spec in zip(graph.user_inputs, inputs, strict=True)} - {None}
    selected: dict[str, str | None] = {}
    for name, spec in zip(graph.user_outputs, outputs, strict=True):
        size = _size(values.get(str(name)), spec)
        # A fixed size has no symbols.
        # Torch represents sizes that depend on values by unbacked symbols.
        unbacked = getattr(size, "free_symbols", ()) and free_unbacked_symbols(size)
        selected[spec.name] = f"the program ({name})" if unbacked else "" if size in rows else None
    return selected


def _size(value: Any, spec: TensorSpec) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() <= spec.batch_dim:
        return None
    return _expression(value.shape[spec.batch_dim])


def _expression(size: Any) -> Any:
    """Return a size as a number or as a symbolic expression."""
    return size if isinstance(size, int) else getattr(getattr(size, "node", None), "expr", None)


def _row_limits(program: torch.export.ExportedProgram) -> tuple[int, int | None]:
    """Return the minimum and maximum batch size for which the program was exported."""
    names = [str(name) for name in program.graph_signature.user_inputs]
    node = next(node for node in program.graph.nodes if node.name == names[0])
    # The first dimension of the first input.
    symbol = _expression(node.meta["val"].shape[0])
    bounds = program.range_constraints.get(symbol) if symbol is not None else None
    if bounds is None:
        return 1, None
    # torch uses a large number or infinity for no upper bound.
    high = int(bounds.upper) if bounds.upper.is_finite and bounds.upper < 2**31 else None
    return max(1, int(bounds.lower)), high
