"""Rows to try a model with: random numbers of several scales, and short texts, or the handler's own samples."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from shoal_runtime.handlers.signature import Signature
from shoal_runtime.handlers.spec import TensorSpec
from shoal_runtime.warmup import shapes
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.elements import object_array

Row = Any
"""Arrays by input, without the batch dimension; or an item, as `preprocess` takes it."""
Batch = Any
"""Rows joined: arrays by input, or a list of items."""

TEXTS: Final = ("a", "hello world", "", "7", "The quick brown fox jumps.", "x,y", "-1.5", "é", "no yes no")
DATES: Final = ("2020-01-01", "1999-12-31T23:59:59", "2024-02-29", "1970-01-01", "2038-01-19")


@dataclass(frozen=True, slots=True)
class Kind:
    """How numbers are drawn.

    Args:
        scale: standard deviation of floating-point numbers, or where ``even`` what they are spread up to from 0.
        ids: integers are below it.
        even: whether they are spread evenly.
        sparse: whether half of the numbers are 0.
    """

    scale: float = 1.0
    ids: int = 2
    even: bool = False
    sparse: bool = False


def kinds(*, anywhere: bool) -> tuple[Kind, ...]:
    """Return the kinds to try with, the plain one first.

    Where numbers are indices, those outside of a table are an error on a CPU, and end the process of a GPU: only
    ``anywhere`` says that they may be large.
    """
    if not anywhere:
        return (Kind(ids=1), Kind(0.01, ids=1), Kind(ids=1, even=True))
    return (
        Kind(),
        Kind(100, ids=100),
        Kind(10, ids=10, sparse=True),
        Kind(even=True, ids=3),
        Kind(0.01),
        Kind(255, even=True, ids=10),
        Kind(1e4, ids=1000),
    )


class Source(Protocol):
    """Where rows come from."""

    def draw(self, kind: Kind, count: int, rng: "np.random.Generator") -> list[Row]:
        """Return so many rows."""

    def join(self, rows: Sequence[Row]) -> Batch:
        """Return the rows as one batch."""


class MadeUp:
    """Rows made up from the signature."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature

    def draw(self, kind: Kind, count: int, rng: "np.random.Generator") -> list[Row]:
        """Return rows of the longest shape."""
        every = shapes(self._signature, count)
        batch = {spec.name: _elements(spec, every[spec.name], kind, rng) for spec in self._signature.inputs}
        return [
            {spec.name: np.take(batch[spec.name], row, spec.batch_dim) for spec in self._signature.inputs}
            for row in range(count)
        ]

    def join(self, rows: Sequence[Row]) -> Mapping[str, Array]:
        """Return wire arrays by input."""
        return {
            spec.name: np.stack([np.asarray(row[spec.name], DTYPES[spec.datatype]) for row in rows], spec.batch_dim)
            for spec in self._signature.inputs
        }


class Samples:
    """The handler's own items, in turn."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = itertools.cycle(items)

    def draw(self, kind: Kind, count: int, rng: "np.random.Generator") -> list[Row]:
        """Return the next items, whatever the kind."""
        return list(itertools.islice(self._items, count))

    def join(self, rows: Sequence[Row]) -> list[Row]:
        """Return the items."""
        return list(rows)


def can_be_made_up(signature: Signature) -> bool:
    """Return whether rows can be made up: numbers, texts and dates can, pictures and documents cannot."""
    return all(spec.datatype != "BYTES" or _is_text(spec) for spec in signature.inputs)


def _is_text(spec: TensorSpec) -> bool:
    return spec.carries is None and (spec.logical_type == "datetime" or "text/plain" in spec.media_types)


def _elements(spec: TensorSpec, shape: Sequence[int], kind: Kind, rng: "np.random.Generator") -> Array:
    if spec.datatype == "BYTES":
        words = DATES if spec.logical_type is not None else TEXTS
        chosen = rng.integers(0, len(words), int(np.prod(shape))).tolist()
        return object_array([words[index].encode() for index in chosen], tuple(shape))
    numbers = _numbers(spec, shape, kind, rng)
    if kind.sparse:
        numbers[rng.random(shape) < 0.5] = 0
    return numbers


def _numbers(spec: TensorSpec, shape: Sequence[int], kind: Kind, rng: "np.random.Generator") -> Array:
    if spec.datatype == "BF16":
        bits: Array = _floats(shape, kind, rng).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(DTYPES["BF16"])
    if spec.datatype.startswith("FP"):
        return np.asarray(_floats(shape, kind, rng), DTYPES[spec.datatype])
    # Bytes are pixels, where others may be indices.
    high = 128 if spec.datatype in ("INT8", "UINT8") else 2 if spec.datatype == "BOOL" else kind.ids
    return np.asarray(rng.integers(0, high, shape), DTYPES[spec.datatype])


def _floats(shape: Sequence[int], kind: Kind, rng: "np.random.Generator") -> Array:
    return kind.scale * (rng.random(shape) if kind.even else rng.standard_normal(shape))
