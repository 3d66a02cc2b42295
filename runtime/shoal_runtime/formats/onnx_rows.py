"""Number of rows of an ONNX graph's outputs, found by shape inference.

Declared output shapes may be wrong, so they are dropped. The batch dimensions of all inputs get one symbol, and onnx
infers the shapes. An output with this symbol in its batch dimension has one row per row of the batch. A symbol that an
operator such as NonZero created means that the values in the batch determine the number of rows.
"""

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shoal_runtime.formats.onnx_mixing import find_mixing
from shoal_runtime.formats.row_values import MixedRows

ROWS: Final = "rows of the batch"
"""Symbol of the batch dimension; a dimension with this name in the file loses its name."""
UNKNOWN: Final = ""
SELECTING: Final[Mapping[str, Sequence[int]]] = {
    "NonZero": (0,),
    "Compress": (1,),
    "NonMaxSuppression": (0, 1),
    "Unique": (0,),
}
"""Operators whose number of results depends on the values of these inputs."""
LARGE: Final = 1024
"""Elements from which on a weight cannot be a shape."""


@dataclass(frozen=True, slots=True)
class TracedRows:
    """Result of `trace_rows`: rows of a graph's outputs."""

    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Dimensions of each output: `ROWS`, a number, the operator that selects its items, or `UNKNOWN`."""
    mixed: Mapping[str, MixedRows] = field(default_factory=dict)
    """Outputs whose rows are proven to depend on other rows, with the node that mixes them."""


def trace_rows(path: Path, batch_dims: Mapping[str, int]) -> TracedRows:
    """Infer the number of rows of a graph's outputs, and find nodes that mix rows.

    The result is empty if onnx is not installed or cannot read the graph.

    Args:
        path: ONNX file; external data is not read.
        batch_dims: batch dimension of each input where it is not 0.
    """
    try:
        onnx = importlib.import_module("onnx")
        model = onnx.load(str(path), load_external_data=False)
        # Functions hide the operators in them.
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        taken = _forget_claims(onnx, model, batch_dims)
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # protobuf's, onnx's own, or ImportError
        return TracedRows()
    selected = _selected(inferred.graph, taken)
    known = _shapes(inferred.graph)
    dims = {
        output.name: [
            selected.get(dim, dim if dim == ROWS or dim.isdigit() else UNKNOWN) for dim in known.get(output.name, ())
        ]
        for output in inferred.graph.output
    }
    return TracedRows(dims, find_mixing(onnx, inferred, {name: batch_dims.get(name, 0) for name in taken}))


def _forget_claims(onnx: Any, model: Any, batch_dims: Mapping[str, int]) -> set[str]:
    """Remove the declared shapes from a graph, except those of its inputs.

    Returns:
        The names of the inputs.
    """
    graph = model.graph
    weights = {weight.name for weight in graph.initializer}
    taken = [value for value in graph.input if value.name not in weights]
    for value in taken:
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            # A fixed batch stays fixed.
            if index == batch_dims.get(value.name, 0) and dim.dim_value <= 0:
                dim.dim_param = ROWS
            elif dim.dim_param == ROWS:
                dim.ClearField("dim_param")
    for function in model.functions:
        del function.value_info[:]
    for each in _graphs(graph):
        del each.value_info[:]
        for value in (*each.output, *(each.input if each is not graph else ())):
            value.type.tensor_type.ClearField("shape")
    # Large weights become inputs, so that shape inference copies little.
    named = {value.name for value in graph.input}
    kept = []
    for weight in graph.initializer:
        if math.prod(weight.dims) < LARGE:
            kept.append(weight)
        elif weight.name not in named:
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    small = [onnx.TensorProto.FromString(weight.SerializeToString()) for weight in kept]
    del graph.initializer[:]
    graph.initializer.extend(small)
    return {value.name for value in taken}


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for inner in _bodies(node):
            yield from _graphs(inner)


def _bodies(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _shapes(graph: Any) -> dict[str, list[str]]:
    """Return the dimensions of each value in a graph as text."""
    return {
        value.name: [dim.dim_param or str(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


def _selected(graph: Any, taken: set[str]) -> dict[str, str]:
    """Find sizes in a graph that depend on the values in the batch.

    Operators in `SELECTING`, such as NonZero, create them. An operator whose inputs depend only on shapes and weights
    is ignored.

    Returns:
        For each symbol of such a size, the type of the operator that creates it.
    """
    shapes = _shapes(graph)
    sent, seen, selected = set(taken), {dim for name in taken for dim in shapes.get(name, ())}, dict[str, str]()
    for node in graph.node:
        places = SELECTING.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
        # Only values that depend on clients count.
        selects = any(place < len(node.input) and node.input[place] in sent for place in places)
        for name in node.output:
            for dim in shapes.get(name, ()):
                if selects and dim not in seen and not dim.isdigit():
                    selected[dim] = node.op_type
                seen.add(dim)
        # The shape of a value is not the value itself.
        if node.op_type not in ("Shape", "Size") and any(name in sent for name in _used(node)):
            sent.update(node.output)
    return selected


def _used(node: Any) -> Iterator[str]:
    yield from node.input
    for body in _bodies(node):
        for inner in body.node:
            yield from _used(inner)
