"""Sources of rows to test a model: generated numbers and texts, or the handler's own items."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from shoal_runtime.signature.spec import TensorSpec
from shoal_runtime.signature.tensors import Signature
from shoal_runtime.startup.warmup import shapes
from shoal_schema.wire.columns import NULL
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.elements import object_array

Values = Mapping[str, Sequence[Sequence[Any]]]
Row = Any
"""Arrays by input without the batch dimension, or an item for `preprocess`."""
Batch = Any
"""Rows joined: arrays by input, or a list of items."""

TEXTS: Final = ("a", "hello world", "", "7", "The quick brown fox jumps.", "x,y", "-1.5", "é", "no yes no")
MISSING: Final = 0.3
"""Share of null elements."""
DATES: Final = ("2020-01-01", "1999-12-31T23:59:59", "2024-02-29", "1970-01-01", "2038-01-19")


@dataclass(frozen=True, slots=True)
class RowKind:
    """Distribution of the numbers in generated rows."""

    scale: float = 1.0
    """Standard deviation of floats, or with ``even`` their upper end."""
    ids: int = 2
    """Exclusive upper bound of integers."""
    even: bool = False
    """Uniform from 0 instead of normal."""
    sparse: bool = False
    """Half of the numbers are 0."""
    binary: bool = False
    """Numbers are 0 or 1."""
    missing: bool = False
    """A third of the elements of nullable inputs is null."""
    gentle: bool = False
    """Tried only if the model rejects all other kinds."""


GENTLE: Final = (
    RowKind(even=True, gentle=True),
    RowKind(binary=True, gentle=True),
    RowKind(binary=True, ids=1, gentle=True),
)
"""Numbers from 0 to 1; zeros and ones; and zeros and ones with all integers 0."""
LARGE: Final = 1e5
"""Scale from which a kind tests numbers beyond the usual."""


def kinds(*, anywhere: bool) -> tuple[RowKind, ...]:
    """Return the distributions of numbers with which to test a model.

    The standard distribution is first.

    Args:
        anywhere: whether integers may be any index. Otherwise they are 0, because an index outside its table, which is
            an error on a CPU, ends the process on a GPU.
    """
    if not anywhere:
        return (RowKind(ids=1), RowKind(0.01, ids=1), RowKind(ids=1, even=True), RowKind(ids=1, missing=True))
    return (
        RowKind(),
        RowKind(100, ids=100),
        RowKind(10, ids=10, sparse=True),
        RowKind(even=True, ids=3),
        RowKind(0.01),
        RowKind(255, even=True, ids=10),
        RowKind(1e4, ids=1000),
        RowKind(1e6, ids=1000),
        RowKind(1e18, ids=1000),
        RowKind(missing=True),
    )


class RowSource(Protocol):
    """Source of rows to test a model."""

    def draw(self, kind: RowKind, count: int, rng: "np.random.Generator") -> list[Row]:
        """Return ``count`` rows of a kind."""

    def join(self, rows: Sequence[Row]) -> Batch:
        """Join rows to one batch."""


class GeneratedRows:
    """Source of rows generated from the signature.

    Args:
        signature: the model's signature.
        values: values to choose from, for each column of each input; any number by default.
    """

    def __init__(self, signature: Signature, values: Values | None = None) -> None:
        self._signature = signature
        self._values = values or {}

    def draw(self, kind: RowKind, count: int, rng: "np.random.Generator") -> list[Row]:
        """Return ``count`` rows of a kind, as long as the signature allows."""
        every = shapes(self._signature, count)
        batch = {spec.name: self._made(spec, every[spec.name], kind, rng) for spec in self._signature.inputs}
        return [
            {spec.name: np.take(batch[spec.name], row, spec.batch_dim) for spec in self._signature.inputs}
            for row in range(count)
        ]

    def _made(self, spec: TensorSpec, shape: Sequence[int], kind: RowKind, rng: "np.random.Generator") -> Array:
        if spec.datatype == "BYTES":
            words: Sequence[str] = DATES if spec.logical_type is not None else TEXTS
            # A model may reject empty text, as it may large numbers.
            words = [word for word in words if word] if kind.gentle else words
            chosen_words = rng.integers(0, len(words), int(np.prod(shape))).tolist()
            made = object_array([words[index].encode() for index in chosen_words], tuple(shape))
        else:
            made = _numbers(spec, shape, kind, rng)
            if kind.sparse:
                made[rng.random(shape) < 0.5] = 0
        # A view: assignments change the batch.
        columns = made.reshape(shape[0], -1)
        for place, values in enumerate(self._values.get(spec.name, ())):
            if values:
                chosen = [values[index] for index in rng.integers(0, len(values), shape[0])]
                columns[:, place] = [each.encode() for each in chosen] if spec.datatype == "BYTES" else chosen
        if kind.missing and spec.nullable:
            made[rng.random(shape) < MISSING] = NULL if spec.datatype == "BYTES" else np.nan
        return made

    def join(self, rows: Sequence[Row]) -> Mapping[str, Array]:
        """Stack rows to wire arrays by input."""
        return {
            spec.name: np.stack([np.asarray(row[spec.name], DTYPES[spec.datatype]) for row in rows], spec.batch_dim)
            for spec in self._signature.inputs
        }


class ExampleRows:
    """Source of the handler's own items, repeated."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = itertools.cycle(items)

    def draw(self, kind: RowKind, count: int, rng: "np.random.Generator") -> list[Row]:
        """Return the next ``count`` items, for any kind."""
        return list(itertools.islice(self._items, count))

    def join(self, rows: Sequence[Row]) -> list[Row]:
        """Return the items as a list."""
        return list(rows)


def can_be_generated(signature: Signature) -> bool:
    """Return whether rows can be generated; images and documents cannot."""
    return all(
        spec.datatype != "BYTES"
        or (spec.carries is None and (spec.logical_type == "datetime" or "text/plain" in spec.media_types))
        for spec in signature.inputs
    )


def _numbers(spec: TensorSpec, shape: Sequence[int], kind: RowKind, rng: "np.random.Generator") -> Array:
    if spec.datatype == "BF16":
        bits: Array = _floats(shape, kind, rng).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(DTYPES["BF16"])
    if spec.datatype.startswith("FP"):
        largest = float(np.finfo(DTYPES[spec.datatype]).max)
        return np.asarray(np.clip(_floats(shape, kind, rng), -largest, largest), DTYPES[spec.datatype])
    # Integers of 8 bits are pixels, others may be indices.
    if kind.binary and kind.ids > 1:
        return np.asarray(rng.integers(0, 2, shape), DTYPES[spec.datatype])
    high = 128 if spec.datatype in ("INT8", "UINT8") else 2 if spec.datatype == "BOOL" else kind.ids
    return np.asarray(rng.integers(0, high, shape), DTYPES[spec.datatype])


def _floats(shape: Sequence[int], kind: RowKind, rng: "np.random.Generator") -> Array:
    if kind.binary:
        return kind.scale * rng.integers(0, 2, shape)
    return kind.scale * (rng.random(shape) if kind.even else rng.standard_normal(shape))
