"""How a tensor of a graph depends on the rows of the batch.

SharedValue     the same for all clients, such as a constant
SeparateRows    each row is computed from the same row of the inputs
MixedRows       a row is computed from other rows
None            unknown
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import Enum

Dims = tuple[Hashable, ...]
"""Sizes of a tensor: numbers, and symbols for sizes that vary."""


class Combination(Enum):
    """Ways in which an operator mixes the rows of a batch.

    Each value is the part of an error message after "depends on NODE, which".
    """

    SUMMED = "computes over the rows of the batch"
    ORDERED = "puts the rows of the batch in another order"
    SELECTED = "selects rows by numbers that clients send or the graph computes"
    PAIRED = "combines each row with every other row"


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value of a graph that is the same for all clients."""

    uniform: bool = False
    """Whether the value is also the same for each row."""


@dataclass(frozen=True, slots=True)
class SeparateRows:
    """A value of a graph in which each row is computed from one row of the batch."""

    axis: int
    """Batch axis."""
    plain: bool = True
    """Whether equal rows give equal values, independent of their position in the batch."""
    merged: bool = False
    """Whether the axis holds several consecutive elements per row."""


@dataclass(frozen=True, slots=True)
class MixedRows:
    """A value of a graph in which a row is computed from other rows of the batch."""

    by: str
    """Node that mixes rows."""
    how: Combination


Value = SharedValue | SeparateRows | MixedRows | None
"""None: unknown."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Tensor argument of a graph node, with its dimensions."""

    value: Value
    dims: Dims

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self.dims)


def mixed_along_batch(operand: Operand, by: str, how: Combination) -> Value:
    """Return a `MixedRows` for an operator that combines rows of its operand.

    Returns:
        None (unknown) if the operand's rows are not separate, or its values depend on the position in the batch.
    """
    value = operand.value
    return MixedRows(by, how) if isinstance(value, SeparateRows) and value.plain else None


def with_batch_axis(value: Value, axis: int) -> Value:
    """Return a value whose batch axis is replaced by ``axis``."""
    return replace(value, axis=axis) if isinstance(value, SeparateRows) else value
