"""Operator calls of an ONNX graph, with the attributes, constants and sizes that are fixed in the file."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shoal_runtime.formats.row_values import Dims, Operand, Value

SMALL: Final = 1024
"""Maximum elements of constants that are read: axes, shapes, and numbers of rows."""


@dataclass(frozen=True, slots=True)
class OnnxCall:
    """Call of an operator in an ONNX graph."""

    op: str
    """Operator, with its domain unless that is ONNX's own."""
    by: str
    """Node for messages."""
    opset: int
    """Version of the operators."""
    inputs: Sequence[Operand | None]
    """Tensors; None if omitted or of unknown rank."""
    constants: Mapping[int, Sequence[int]]
    """Constant integers by position of the input."""
    attributes: Mapping[str, Any]
    outputs: Sequence[Dims | None]
    """Dimensions of each output; None if the rank is unknown."""
    rows: Hashable
    """Dimension that counts the rows of the batch."""

    def given(self, place: int) -> Operand:
        """Return the input at a position.

        Raises:
            LookupError: the input is omitted, or its rank is unknown.
        """
        operand = self.inputs[place] if place < len(self.inputs) else None
        if operand is None:
            raise LookupError(place)
        return operand

    def tensors(self) -> list[Operand]:
        """Return the inputs that are given and have a known rank."""
        return [operand for operand in self.inputs if operand is not None]

    def dims(self, place: int = 0) -> Dims:
        """Return the dimensions of an output.

        Raises:
            LookupError: the output's rank is unknown.
        """
        dims = self.outputs[place]
        if dims is None:
            raise LookupError(place)
        return dims

    def axes(self, place: int, name: str = "axes") -> Sequence[int] | None:
        """Return axes from an attribute or a constant input; None if neither is given.

        Args:
            place: position of the input.
            name: name of the attribute.

        Raises:
            LookupError: the axes are not constant.
        """
        # Axes were attributes in older opsets, and are inputs in newer ones.
        if name in self.attributes:
            found = self.attributes[name]
            return [found] if isinstance(found, int) else list(found)
        if place < len(self.inputs) and self.inputs[place] is not None:
            return list(self.constants[place])
        return None

    def axis(self, default: int) -> int:
        """Return the attribute `axis`, or ``default`` without this attribute."""
        found: int = self.attributes.get("axis", default)
        return found


class GraphFacts:
    """Values, shapes and constants of an ONNX graph that are known so far, by name."""

    def __init__(self, onnx: Any, model: Any) -> None:
        graph = model.graph
        self._onnx = onnx
        self.rows: Hashable = None
        """Dimension that counts the rows of the batch."""
        self.opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
        self.values: dict[str, Value] = {}
        self.shapes: dict[str, Dims] = {}
        self.constants: dict[str, Sequence[int]] = {}
        # Inputs, intermediate values and outputs.
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.tensor_type.HasField("shape"):
                # Each size that the file leaves open is a symbol of its own.
                self.shapes[value.name] = tuple(
                    dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}[{index}]"
                    for index, dim in enumerate(value.type.tensor_type.shape.dim)
                )
        for weight in graph.initializer:
            self.add_constant(weight.name, weight)

    def add_constant(self, name: str, tensor: Any) -> None:
        """Store the shape of a constant, and its elements if they are few integers."""
        self.shapes[name] = tuple(tensor.dims)
        whole = tensor.data_type in (self._onnx.TensorProto.INT64, self._onnx.TensorProto.INT32)
        if whole and math.prod(tensor.dims) <= SMALL:
            self.constants[name] = self._onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()

    def call(self, node: Any) -> OnnxCall:
        """Return a graph node as an operator call."""
        attributes = {each.name: self._onnx.helper.get_attribute_value(each) for each in node.attribute}
        domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}."
        # Exporters may omit names of nodes.
        title = node.name or next(iter(node.output), "")
        operands: list[Operand | None] = []
        for name in node.input:
            # Without a rank the value's axis has no meaning.
            value = self.values.get(name) if name in self.shapes else None
            operands.append(Operand(value, self.shapes.get(name, ())) if name else None)
        return OnnxCall(
            domain + node.op_type,
            f"node {title} ({node.op_type})",
            self.opset,
            operands,
            {place: self.constants[name] for place, name in enumerate(node.input) if name in self.constants},
            attributes,
            [self.shapes.get(name) for name in node.output],
            self.rows,
        )
