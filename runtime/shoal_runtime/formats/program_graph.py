"""Operator calls of a torch.export program, with the arguments that are fixed in the file."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal_runtime.formats.row_values import Dims, Operand, SharedValue, Value


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """Call of an operator in a torch.export program."""

    by: str
    """Node for messages."""
    arguments: Mapping[str, Any]
    """By name in the operator's schema."""
    dims: Dims
    """Dimensions of the result, or of the first of several."""
    values: Mapping[str, Value]
    """Known values of nodes."""
    rows: Hashable
    """Dimension that counts the rows of the batch."""

    def operand(self, name: str) -> Operand:
        """Return an argument as an operand.

        A number is treated as a tensor that is the same for all rows.

        Raises:
            LookupError: the argument is missing.
        """
        return self.known(self.arguments[name])

    def known(self, value: Any) -> Operand:
        """Return a node or number as an operand."""
        if not isinstance(value, torch.fx.Node):
            return Operand(SharedValue(uniform=True), ())
        return Operand(self.values.get(value.name), dims_of(value))

    def tensors(self) -> list[Operand]:
        """Return all arguments that are tensors or sizes, including those in lists."""
        found: list[torch.fx.Node] = []
        torch.fx.map_arg(dict(self.arguments), found.append)
        return [self.known(node) for node in found]

    def number(self, name: str, default: int) -> int:
        """Return an integer argument.

        Raises:
            TypeError: the argument is not an integer that is fixed in the program.
        """
        found = self.arguments.get(name, default)
        if not isinstance(found, int):
            raise TypeError(name)
        return found

    def axes(self, name: str = "dim") -> Sequence[int] | None:
        """Return an argument that lists axes; None for all axes."""
        found = self.arguments.get(name)
        if found is None or found == []:
            return None
        return [found] if isinstance(found, int) else list(found)


def call_of(node: torch.fx.Node, values: Mapping[str, Value], rows: Hashable) -> ProgramCall:
    """Return a graph node as an operator call."""
    target: Any = node.target
    # Positional arguments get the names of the schema.
    schema = [argument.name for argument in target._schema.arguments]
    arguments = {**dict(zip(schema, node.args, strict=False)), **node.kwargs}
    return ProgramCall(f"node {node.name} ({operator_of(node)})", arguments, dims_of(node), values, rows)


def operator_of(node: torch.fx.Node) -> str:
    """Return an operator's name without namespace and overload, or the name of a Python function."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return getattr(target, "__name__", str(target))


def dims_of(node: torch.fx.Node) -> Dims:
    """Return the dimensions of a node's result.

    For an operator with several results, these are the dimensions of the first. A number has none.
    """
    value = node.meta.get("val")
    # An operator with several results has a tuple of values.
    while isinstance(value, tuple | list) and value:
        value = value[0]
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(size if isinstance(size, int) else size.node.expr for size in value.shape)
