"""A graph of ONNX, node by node: attributes, constants and sizes, as inference of shapes gave them."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shoal_runtime.formats.mixing import Dims, Operand, Value

SMALL: Final = 1024
"""Elements of constants that are read: axes, shapes, and numbers of rows."""


@dataclass(frozen=True, slots=True)
class Step:
    """One node, and what is known of its inputs and outputs.

    Args:
        op: the operator, with its domain where that is not ONNX's own.
        by: the node in words.
        opset: the version of the operators.
        inputs: tensors; None where one is left out, or of unknown rank.
        constants: of the inputs' places, whole numbers that are constant.
        attributes: of the node.
        outputs: the dimensions of each output, None where the rank is unknown.
        rows: the dimension that counts the batch's rows.
    """

    op: str
    by: str
    opset: int
    inputs: Sequence[Operand | None]
    constants: Mapping[int, Sequence[int]]
    attributes: Mapping[str, Any]
    outputs: Sequence[Dims | None]
    rows: Hashable

    def given(self, place: int) -> Operand:
        """Return an input.

        Raises:
            LookupError: it is left out, or its rank is unknown.
        """
        operand = self.inputs[place] if place < len(self.inputs) else None
        if operand is None:
            raise LookupError(place)
        return operand

    def dims(self, place: int = 0) -> Dims:
        """Return an output's dimensions.

        Raises:
            LookupError: its rank is unknown.
        """
        dims = self.outputs[place]
        if dims is None:
            raise LookupError(place)
        return dims

    def axes(self, place: int, name: str = "axes") -> Sequence[int] | None:
        """Return axes from an attribute or a constant input; None where there are neither.

        Raises:
            LookupError: they are no constant.
        """
        if name in self.attributes:
            found = self.attributes[name]
            return [found] if isinstance(found, int) else list(found)
        if place < len(self.inputs) and self.inputs[place] is not None:
            return list(self.constants[place])
        return None

    def axis(self, default: int) -> int:
        """Return the attribute `axis`."""
        found: int = self.attributes.get("axis", default)
        return found


class Facts:
    """What is known of a graph's values by name, and the dimension that counts the rows."""

    def __init__(self, onnx: Any, model: Any) -> None:
        graph = model.graph
        self._onnx = onnx
        self.rows: Hashable = None
        self.opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
        self.values: dict[str, Value] = {}
        self.shapes: dict[str, Dims] = {}
        self.constants: dict[str, Sequence[int]] = {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.tensor_type.HasField("shape"):
                self.shapes[value.name] = _dims(value)
        for weight in graph.initializer:
            self.add_constant(weight.name, weight)

    def add_constant(self, name: str, tensor: Any) -> None:
        """Remember a constant's shape, and its numbers where they may be axes or a shape."""
        self.shapes[name] = tuple(tensor.dims)
        whole = tensor.data_type in (self._onnx.TensorProto.INT64, self._onnx.TensorProto.INT32)
        if whole and math.prod(tensor.dims) <= SMALL:
            self.constants[name] = self._onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()

    def step(self, node: Any) -> Step:
        """Return a node as the rules take it."""
        attributes = {each.name: self._onnx.helper.get_attribute_value(each) for each in node.attribute}
        domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}."
        name = node.name or next(iter(node.output), "")
        return Step(
            domain + node.op_type,
            f"node {name} ({node.op_type})",
            self.opset,
            [self._operand(name) for name in node.input],
            {place: self.constants[name] for place, name in enumerate(node.input) if name in self.constants},
            attributes,
            [self.shapes.get(name) for name in node.output],
            self.rows,
        )

    def _operand(self, name: str) -> Operand | None:
        if not name:
            return None
        # Of an unknown rank nothing is known.
        known = name in self.shapes
        return Operand(self.values.get(name) if known else None, self.shapes.get(name, ()))


def _dims(value: Any) -> Dims:
    """Return sizes; those that the file leaves open are symbols of their own."""
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}[{index}]"
        for index, dim in enumerate(value.type.tensor_type.shape.dim)
    )
