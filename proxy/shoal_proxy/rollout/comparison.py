"""Comparison of two results of the same batch, row by row.

Numbers agree within a tolerance, all else must be equal. A row agrees if all of its elements do. NaN agrees with NaN,
and an infinity with one of the same sign. With ``top_k``, a row agrees if the same positions hold its largest numbers.
If equal numbers leave a choice of positions, one common choice suffices.

Rows of variable length are compared up to their own length: what a model returns for padding has no meaning.

Large outputs are compared in pieces, between which the caller may do other work.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from shoal_schema.interfaces.rollout import OutputTolerance
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32

PIECE_ELEMENTS: Final = 1 << 15
"""Elements of one piece: about 0.2 ms."""
DEFAULT_TOLERANCE: Final = OutputTolerance()
_KINDS: Final = {"f": "floating-point numbers", "i": "integers", "u": "integers", "b": "booleans", "O": "bytes"}


class OutputDifference(NamedTuple):
    """Difference of one output between two results of a batch."""

    rows: int
    """Compared rows."""
    disagreements: int = 0
    max_abs_error: float = 0.0
    """Largest difference of two finite numbers."""
    change: str = ""
    """The reason that no row can be compared; empty if rows were compared."""


class ComparedOutput(NamedTuple):
    """One output of a batch, batch dimension first."""

    array: Array
    datatype: str
    declared: tuple[int, ...] = ()
    """Shape by the model's signature, -1 for any size; empty if unknown."""


class OutputLengths(NamedTuple):
    """The own lengths of an output's rows."""

    axis: int
    """Axis of variable length, of the array with its batch dimension."""
    lengths: Sequence[int]


class BatchComparison:
    """The comparison of two results of one batch.

    Args:
        rows: rows of the batch.
        stable: outputs of the first result, by name.
        other: outputs of the second result.
        tolerances: by output; others have the default.
        lengths: of outputs whose rows differ in length.
    """

    def __init__(
        self,
        rows: int,
        stable: Mapping[str, ComparedOutput],
        other: Mapping[str, ComparedOutput],
        tolerances: Mapping[str, OutputTolerance],
        lengths: Mapping[str, OutputLengths] | None = None,
    ) -> None:
        self._rows = rows
        self._stable = stable
        self._other = other
        self._tolerances = tolerances
        self._lengths = lengths or {}
        self.differences: dict[str, OutputDifference] = {}
        """By output, once `pieces` has ended."""

    def pieces(self) -> Iterator[None]:
        """Compare one piece before each item of this iterator."""
        for name, stable in self._stable.items():
            other, lengths = self._other.get(name), self._lengths.get(name)
            change = change_of(stable, other, lengths)
            if change or other is None:
                self.differences[name] = OutputDifference(0, change=change)
                continue
            if _shapes_differ(stable, other, lengths):
                self.differences[name] = OutputDifference(self._rows, self._rows)
                continue
            tolerance = self._tolerances.get(name, DEFAULT_TOLERANCE)
            step = max(1, PIECE_ELEMENTS * self._rows // max(1, stable.array.size))
            disagreements, max_abs_error = 0, 0.0
            for start in range(0, self._rows, step):
                piece = slice(start, start + step)
                agrees, error = _compared(
                    _cut(stable, other, piece), stable.datatype, other.datatype, tolerance, lengths, piece
                )
                disagreements += int(agrees.size - np.count_nonzero(agrees))
                max_abs_error = max(max_abs_error, error)
                yield
            self.differences[name] = OutputDifference(self._rows, disagreements, max_abs_error)


def change_of(stable: ComparedOutput, other: ComparedOutput | None, lengths: OutputLengths | None = None) -> str:
    """Return why rows of two outputs cannot be compared; empty if they can."""
    if other is None:
        return "the candidate does not return this output"
    kinds = [_KINDS.get(_kind(each), each.datatype) for each in (stable, other)]
    if kinds[0] != kinds[1]:
        return f"the candidate returns {kinds[1]} ({other.datatype}) instead of {kinds[0]} ({stable.datatype})"
    # Sizes that a signature leaves open differ like results do.
    as_declared = stable.declared and stable.declared == other.declared and stable.array.ndim == other.array.ndim
    if not as_declared and _shapes_differ(stable, other, lengths):
        return f"the candidate returns the shape {list(other.array.shape)} instead of {list(stable.array.shape)}"
    return ""


def _shapes_differ(stable: ComparedOutput, other: ComparedOutput, lengths: OutputLengths | None) -> bool:
    shapes = [list(each.array.shape) for each in (stable, other)]
    if lengths is not None and len(shapes[0]) == len(shapes[1]):
        # Each may be padded to another length, but neither may be shorter than a row.
        longest = max(lengths.lengths, default=0)
        if min(shape[lengths.axis] for shape in shapes) >= longest:
            shapes[0][lengths.axis] = shapes[1][lengths.axis]
    return shapes[0] != shapes[1]


def _kind(output: ComparedOutput) -> str:
    return "f" if output.datatype == "BF16" else output.array.dtype.kind


def _cut(stable: ComparedOutput, other: ComparedOutput, piece: slice) -> tuple[Array, Array]:
    return stable.array[piece], other.array[piece]


def _compared(
    pair: tuple[Array, Array],
    datatype: str,
    other_datatype: str,
    tolerance: OutputTolerance,
    lengths: OutputLengths | None,
    piece: slice,
) -> tuple[Array, float]:
    """Return which rows agree, and the largest difference of finite numbers."""
    left, right = pair
    valid: Array | None = None
    if lengths is not None:
        left, right, valid = _common_region(left, right, lengths, piece)
    rows = len(left)
    if datatype == "BF16":
        left = bfloat16_to_float32(left)
    if other_datatype == "BF16":
        right = bfloat16_to_float32(right)
    a, b = left.reshape(rows, -1), right.reshape(rows, -1)
    if a.dtype.kind in "bO":
        return _all_valid(a == b, valid), 0.0
    if tolerance.top_k is not None:
        return top_k_agrees(_widened(a, valid, -np.inf), _widened(b, valid, -np.inf), tolerance.top_k), 0.0
    if a.dtype.kind in "iu":
        equal = a == b
        return _all_valid(equal, valid), 0.0 if equal.all() else _largest(_widened(a, valid, 0), _widened(b, valid, 0))
    a, b = _widened(a, valid, 0), _widened(b, valid, 0)
    agrees, error = _numbers_agree(a, b, tolerance)
    return agrees, error


def _common_region(left: Array, right: Array, lengths: OutputLengths, piece: slice) -> tuple[Array, Array, Array]:
    """Cut both to the longest row; return them, and which elements belong to a row."""
    own = np.asarray(lengths.lengths[piece])
    longest = int(own.max(initial=0))
    index = [slice(None)] * left.ndim
    index[lengths.axis] = slice(0, longest)
    left, right = left[tuple(index)], right[tuple(index)]
    shape = [len(left)] + [1] * (left.ndim - 1)
    shape[lengths.axis] = longest
    inside = (np.arange(longest) < own[:, None]).reshape(shape)
    return left, right, np.broadcast_to(inside, left.shape).reshape(len(left), -1)


def _widened(array: Array, valid: Array | None, filler: float) -> Array:
    """Return numbers as FP64, with ``filler`` for elements outside of rows."""
    wide: Array = array.astype(np.float64)
    return wide if valid is None else np.where(valid, wide, filler)


def _all_valid(equal: Array, valid: Array | None) -> Array:
    agrees: Array = np.all(equal.astype(bool) if valid is None else equal.astype(bool) | ~valid, axis=1)
    return agrees


def _numbers_agree(stable: Array, other: Array, tolerance: OutputTolerance) -> tuple[Array, float]:
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(stable - other)
        near = apart <= tolerance.max_abs_error + tolerance.max_rel_error * np.abs(stable)
    finite = np.isfinite(stable) & np.isfinite(other)
    same = (stable == other) | (np.isnan(stable) & np.isnan(other))
    agrees: Array = np.all((near & finite) | same, axis=1)
    return agrees, float(apart.max(where=finite, initial=0.0))


def _largest(stable: Array, other: Array) -> float:
    return float(np.abs(stable - other).max(initial=0.0))


def top_k_agrees(stable: Array, other: Array, k: int) -> Array:
    """Return for each row whether the same ``k`` positions hold its largest numbers.

    Equal numbers leave a choice: rows agree if some choice fits both. NaN counts as the smallest, and must be at the
    same positions.
    """
    not_numbers = [np.isnan(each) for each in (stable, other)]
    same: Array = np.all(not_numbers[0] == not_numbers[1], axis=1)
    if k >= stable.shape[1]:
        return same
    must: list[Array] = []
    may: list[Array] = []
    for each, missing in zip((stable, other), not_numbers, strict=True):
        numbers = np.where(missing, -np.inf, each)
        least = np.partition(numbers, -k, axis=1)[:, -k, None]
        must.append(numbers > least)
        may.append(numbers >= least)
    needed, allowed = must[0] | must[1], may[0] & may[1]
    fits: Array = ~np.any(needed & ~allowed, axis=1)
    agrees: Array = same & fits & (needed.sum(axis=1) <= k) & (allowed.sum(axis=1) >= k)
    return agrees
