"""Tensors over the rows of a space, of which some rows may be absent; and how they move from space to space."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from shoal_schema.graphs.tensors import Tensor
from shoal_schema.wire.datatypes import DTYPES, Array

_BF16_NAN: Final = 0x7FC0


class Values:
    """The values of those ``rows`` (ascending numbers) that have one; ``rows`` is None where all have."""

    __slots__ = ("array", "rows")

    def __init__(self, array: Array, rows: Array | None = None) -> None:
        self.array = array
        self.rows = rows

    def pick(self, rows: Array | None) -> Array:
        """Return the values of some rows, all of which have one; None is all rows. Nothing is copied needlessly."""
        if rows is None or rows is self.rows:
            return self.array
        if self.rows is None:
            return self.array[rows]
        if len(rows) == len(self.rows):
            return self.array
        return self.array[np.searchsorted(self.rows, rows)]

    def present(self, count: int) -> Array | None:
        """Return which of so many rows have a value; None: all."""
        if self.rows is None:
            return None
        mask = np.zeros(count, bool)
        mask[self.rows] = True
        return mask


class Rows:
    """The rows of a space: of each its ``parents`` row, and which of that row's items it is."""

    __slots__ = ("count", "numbers", "parents")

    def __init__(self, parents: Array, numbers: Array) -> None:
        self.count = len(parents)
        self.parents = parents
        self.numbers = numbers

    def repeat(self, values: Values) -> Values:
        """Return values of the parents' rows, each for every item."""
        if values.rows is None:
            return Values(values.array[self.parents])
        chosen = np.flatnonzero(np.isin(self.parents, values.rows))
        rows = None if len(chosen) == self.count else chosen
        return Values(values.array[np.searchsorted(values.rows, self.parents[chosen])], rows)

    def gather(self, values: Values, parents: int, tensor: Tensor, most_bytes: int) -> Values:
        """Return lists of items, for each of so many parents' rows; the shorter are filled up.

        Raises:
            ValueError: the lists would take too many bytes.
        """
        longest = int(self.numbers.max()) + 1 if self.count else 0
        shape = values.array.shape[1:]
        size_bytes = parents * longest * int(np.prod(shape, dtype=np.int64)) * DTYPES[tensor.datatype].itemsize
        if size_bytes > most_bytes:
            raise ValueError(f"lists of up to {longest} items for {parents} rows would take {size_bytes} bytes")
        lists = gaps(tensor, (parents, longest, *shape))
        chosen = slice(None) if values.rows is None else values.rows
        lists[self.parents[chosen], self.numbers[chosen]] = values.array
        return Values(lists)


def open_rows(source: Values, counts: Array | None) -> tuple[Rows, Array | None]:
    """Return the rows that items make, and which of the source's items they are (None: all of them).

    Args:
        source: rows of items, the items in the second dimension.
        counts: how many there are of each row that has any; None: all, of texts without the empty ones at the end.
    """
    array = source.array
    rows, width = array.shape[:2]
    of = np.arange(rows) if source.rows is None else source.rows
    if counts is None and array.dtype.hasobject:
        counts = np.fromiter(map(_filled, array.reshape(rows, width, -1).tolist()), np.int64, rows)
    if counts is None or (counts == width).all():
        return Rows(np.repeat(of, width), np.tile(np.arange(width), rows)), None
    chosen = np.arange(width) < counts[:, None]
    return Rows(np.repeat(of, counts), np.nonzero(chosen)[1]), chosen


def items_of(source: Values, chosen: Array | None) -> Array:
    """Return the items themselves, one after another."""
    array = source.array
    return array.reshape(-1, *array.shape[2:]) if chosen is None else array[chosen]


def _filled(items: Sequence[Sequence[Any]]) -> int:
    """Return how many items there are up to the last that is not empty."""
    return next((len(items) - index for index, item in enumerate(reversed(items)) if any(item)), 0)


def filled_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return a row's shape where no row tells it: what may vary is nothing."""
    return tuple(max(0, size) for size in tensor.shape)


def gaps(tensor: Tensor, shape: tuple[int, ...]) -> Array:
    """Return an array of what stands for no value: NaN, an empty text; of other numbers 0, which fills up lists."""
    if tensor.datatype == "BYTES":
        texts = np.empty(shape, object)
        texts.fill(b"")
        return texts
    dtype = DTYPES[tensor.datatype]
    return np.full(shape, np.nan if dtype.kind == "f" else _BF16_NAN if tensor.datatype == "BF16" else 0, dtype)


def completed(values: Values, count: int, tensor: Tensor) -> Array:
    """Return one value for each of so many rows, with gaps where there is none."""
    if values.rows is None:
        return values.array
    array = gaps(tensor, (count, *values.array.shape[1:]))
    array[values.rows] = values.array
    return array
