"""Tensors over the rows of a space, some of which may be absent.

A space is a set of rows: those of the request, or one row for each item of a list.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from shoal_schema.graphs.tensors import Tensor
from shoal_schema.wire.datatypes import DTYPES, Array

_BF16_NAN: Final = 0x7FC0
TEXT_BYTES: Final = 256
"""Overhead bytes of a text, for storage and in a response."""


class SpaceValues:
    """Values of one tensor, for the rows that have a value.

    ``rows`` are the numbers of these rows; None if all rows have a value.
    """

    __slots__ = ("array", "rows")

    def __init__(self, array: Array, rows: Array | None = None) -> None:
        self.array = array
        self.rows = rows

    def pick(self, rows: Array | None) -> Array:
        """Return the values of ``rows``; None returns all values.

        Each of the rows must have a value.
        """
        if rows is None or rows is self.rows:
            return self.array
        if self.rows is None:
            return self.array[rows]
        if len(rows) == len(self.rows):
            return self.array
        return self.array[np.searchsorted(self.rows, rows)]

    def present(self, count: int) -> Array | None:
        """Return a mask of the rows that have a value; None if all have one.

        ``count`` is the number of all rows.
        """
        if self.rows is None:
            return None
        mask = np.zeros(count, bool)
        mask[self.rows] = True
        return mask


class SpaceRows:
    """The rows of a space that is made of list items: one row for each item."""

    __slots__ = ("count", "numbers", "opened", "parents")

    def __init__(self, parents: Array, numbers: Array, opened: Array | None) -> None:
        self.count = len(parents)
        self.parents = parents
        """By row, the row of the space above."""
        self.numbers = numbers
        """By row, the index of its item in that row's list."""
        self.opened = opened
        """Rows of the space above that have a list, perhaps an empty one; None: all."""

    def repeat(self, values: SpaceValues, most_bytes: int) -> SpaceValues:
        """Repeat each row's value for every item of the row's list.

        Raises:
            ValueError: the repeated values would exceed ``most_bytes``.
        """
        chosen, parents = None, self.parents
        if values.rows is not None:
            # Only items whose row above has a value.
            chosen = np.flatnonzero(np.isin(self.parents, values.rows))
            parents = np.searchsorted(values.rows, self.parents[chosen])
        array, rows = values.array, len(values.array)
        if array.dtype.hasobject:
            texts = array.reshape(rows, array.size // max(rows, 1))
            sizes = np.fromiter((sum(map(len, row)) for row in texts.tolist()), np.int64, rows)
            size_bytes = int((sizes + TEXT_BYTES * texts.shape[1])[parents].sum())
        else:
            size_bytes = len(parents) * array[:1].nbytes
        if size_bytes > most_bytes:
            raise ValueError(f"the values repeated for each of {self.count} items would take {size_bytes} bytes")
        return SpaceValues(array[parents], None if chosen is None or len(chosen) == self.count else chosen)

    def gather(self, values: SpaceValues, parents: int, tensor: Tensor, most_bytes: int) -> SpaceValues:
        """Gather the values of list items into one list for each outer row.

        Shorter lists are padded as `gaps` does: with NaN, empty text or 0.

        Raises:
            ValueError: the lists would exceed ``most_bytes``.
        """
        longest = int(self.numbers.max()) + 1 if self.count else 0
        shape = values.array.shape[1:]
        item_bytes = TEXT_BYTES if tensor.datatype == "BYTES" else DTYPES[tensor.datatype].itemsize
        size_bytes = parents * longest * int(np.prod(shape, dtype=np.int64)) * item_bytes
        if size_bytes > most_bytes:
            raise ValueError(f"lists of up to {longest} items for {parents} rows would take {size_bytes} bytes")
        lists = gaps(tensor, (parents, longest, *shape))
        chosen = slice(None) if values.rows is None else values.rows
        lists[self.parents[chosen], self.numbers[chosen]] = values.array
        return SpaceValues(lists if self.opened is None else lists[self.opened], self.opened)


def open_rows(source: SpaceValues, counts: Array | None) -> tuple[SpaceRows, Array | None]:
    """Create one row for each list item.

    Args:
        source: lists of items, which are in the second dimension.
        counts: number of items by row; None: all items, except empty texts at the end of a row.

    Returns: The rows, and a mask of the items that have a row; None if all items have one.
    """
    array = source.array
    rows, width = array.shape[:2]
    of = np.arange(rows) if source.rows is None else source.rows
    if counts is None and array.dtype.hasobject:
        # Texts end with empty ones where a row has fewer items.
        each = array.size // max(rows * width, 1)
        counts = np.fromiter(map(_filled, array.reshape(rows, width, each).tolist()), np.int64, rows)
    if counts is None or (counts == width).all():
        return SpaceRows(np.repeat(of, width), np.tile(np.arange(width), rows), source.rows), None
    # Rows have different numbers of items: keep the first of each.
    chosen = np.arange(width) < counts[:, None]
    return SpaceRows(np.repeat(of, counts), np.nonzero(chosen)[1], source.rows), chosen


def items_of(source: SpaceValues, chosen: Array | None) -> Array:
    """Flatten lists to one row for each chosen item.

    ``chosen`` is a mask of items; None chooses all.
    """
    array = source.array
    return array.reshape(-1, *array.shape[2:]) if chosen is None else array[chosen]


def _filled(items: Sequence[Sequence[Any]]) -> int:
    """Return the number of items up to the last one that is not empty."""
    # A function with types: mypyc does not compile `reversed` of a value of any type.
    return next((len(items) - index for index, item in enumerate(reversed(items)) if any(item)), 0)


def filled_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of a row, with 0 for variable dimensions."""
    return tuple(max(0, size) for size in tensor.shape)


def gaps(tensor: Tensor, shape: tuple[int, ...]) -> Array:
    """Return an array of absent values: NaN, empty texts, and 0 for integers."""
    if tensor.datatype == "BYTES":
        texts = np.empty(shape, object)
        texts.fill(b"")
        return texts
    dtype = DTYPES[tensor.datatype]
    return np.full(shape, np.nan if dtype.kind == "f" else _BF16_NAN if tensor.datatype == "BF16" else 0, dtype)


def completed(values: SpaceValues, count: int, tensor: Tensor) -> Array:
    """Return values for ``count`` rows, with gaps for rows without a value."""
    if values.rows is None:
        return values.array
    array = gaps(tensor, (count, *values.array.shape[1:]))
    array[values.rows] = values.array
    return array


def stacked(arrays: Sequence[Array], tensor: Tensor) -> Array:
    """Return the rows of several arrays one after another, padded with gaps."""
    shape = tuple(map(max, zip(*(each.shape[1:] for each in arrays), strict=True)))
    if all(each.shape[1:] == shape for each in arrays):
        return np.concatenate(arrays)
    result = gaps(tensor, (sum(map(len, arrays)), *shape))
    begin = 0
    for each in arrays:
        result[(slice(begin, begin + len(each)), *map(slice, each.shape[1:]))] = each
        begin += len(each)
    return result
