"""Batches that are run before the model is ready, for lazy kernels, compilation and CUDA graphs.

Inputs are zeros for every allowed batch size and every bucket of lengths. A handler may provide `warmup_items()`, a
list of items for `preprocess`, if inputs cannot be generated (BYTES) or `preprocess` rejects zeros.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from shoal_runtime.batches.collate import collate
from shoal_runtime.handlers.base import HandlerMethods
from shoal_runtime.handlers.items import batch_of_items, row_item
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_runtime.signature.tensors import Signature
from shoal_runtime.tensors.library import Library
from shoal_schema.wire.datatypes import DTYPES


@dataclass(frozen=True, slots=True)
class WarmupBatch:
    """A batch for warm-up: its number of rows, and a function that makes it."""

    rows: int
    make: Callable[[], Any]
    """Makes the batch in host memory."""
    exact: bool
    """Real batches have this form; if not, a failure proves nothing about the model."""
    own: bool = False
    """The rows are the handler's own items."""
    longer: Callable[[], Any] | None = None
    """Makes a batch of longer rows, if a single length was made up."""


LONGER = 64
"""Size of a dimension of any size, where 1 fails."""


def plan_warmup(stages: HandlerMethods, signature: Signature, handler: Any, library: Library) -> list[WarmupBatch]:
    """Return the batches for warm-up, largest first, so that running out of memory is found early."""
    sizes = signature.allowed_batch_sizes or tuple(sorted({1, signature.max_batch_size}))
    return _batches(stages, signature, handler, sizes, library)


def plan_measuring(stages: HandlerMethods, signature: Signature, handler: Any, library: Library) -> list[WarmupBatch]:
    """Return further batches whose forwards are only timed.

    They have 2, 4, 8 and so on rows, below the largest size, in increasing order. The list is empty

    - if batch sizes are fixed, because warm-up measures each of them;
    - if rows are generated or have several lengths, because their times differ from those of real rows.
    """
    if signature.allowed_batch_sizes:
        return []
    powers = [1 << power for power in range(1, signature.max_batch_size.bit_length())]
    sizes = tuple(size for size in powers if size < signature.max_batch_size)
    batches = _batches(stages, signature, handler, sizes, library)[::-1]
    comparable = len(batches) == len(sizes) and all(batch.exact for batch in batches)
    return batches if comparable else []


def _batches(
    stages: HandlerMethods, signature: Signature, handler: Any, sizes: Sequence[int], library: Library
) -> list[WarmupBatch]:
    items: Any = getattr(handler, "warmup_items", None)
    preprocess, sizes = stages.preprocess, sizes[::-1]

    def from_items(rows: int) -> Any:
        some = list(itertools.islice(itertools.cycle(items()), rows))
        if not some:
            raise ValueError("warmup_items() returned no item")
        if preprocess is None:
            return batch_of_items(some, signature, library)
        return collate([preprocess(item) for item in some], stages.preprocess_padding, library)

    def from_zeros(rows: int) -> Any:
        # The same row repeated: preprocess may reject zeros.
        assert preprocess is not None
        shapes = {spec.name: [1 if size == ANY else size for size in spec.shape] for spec in signature.inputs}
        inputs = {spec.name: np.zeros(shapes[spec.name], DTYPES[spec.datatype]) for spec in signature.inputs}
        return collate([preprocess(row_item(inputs, 0, signature))] * rows, stages.preprocess_padding, library)

    if items is not None:
        return [WarmupBatch(size, partial(from_items, size), exact=True, own=True) for size in sizes]
    if any(spec.datatype == "BYTES" for spec in signature.inputs):
        return []
    if preprocess is not None:
        return [WarmupBatch(size, partial(from_zeros, size), exact=False) for size in sizes]
    return [_zeros(signature, size, lengths, library) for size in sizes for lengths in _lengths(signature.inputs)]


def shapes(signature: Signature, rows: int) -> dict[str, list[int]]:
    """Return the shape of each input in a batch of the longest rows.

    A dimension of any size has size 1.
    """
    lengths = next(_lengths(signature.inputs))
    return {
        spec.name: [1 if size == ANY else size for size in _shape(spec, rows, lengths)] for spec in signature.inputs
    }


def _lengths(inputs: Sequence[TensorSpec]) -> Iterator[Mapping[tuple[str, int], int]]:
    """Yield the lengths for each warm-up batch, one for each padded axis.

    The first batch has the longest length of every axis. In each next one the lengths are shorter; an axis with fewer
    lengths repeats its longest.
    """
    padded = {(s.name, s.pad_axis): s.pad_buckets for s in inputs if s.pad_axis is not None}
    count = max((len(buckets) for buckets in padded.values()), default=0)
    # The longest first, as memory runs out there.
    for index in reversed(range(max(count, 1))):
        yield {axis: buckets[min(index, len(buckets) - 1)] for axis, buckets in padded.items() if buckets}


def _zeros(signature: Signature, rows: int, lengths: Mapping[tuple[str, int], int], library: Library) -> WarmupBatch:
    shapes = {spec.name: _shape(spec, rows, lengths) for spec in signature.inputs}
    exact = all(ANY not in shape for shape in shapes.values())

    def make(length: int = 1) -> dict[str, Any]:
        return {
            spec.name: library.filled([length if size == ANY else size for size in shapes[spec.name]], spec.datatype, 0)
            for spec in signature.inputs
        }

    # Several lengths may have to fit each other, so only a single one is varied.
    alone = sum(size == ANY for shape in shapes.values() for size in shape) == 1
    return WarmupBatch(rows, make, exact=exact, longer=partial(make, LONGER) if alone else None)


def _shape(spec: TensorSpec, rows: int, lengths: Mapping[tuple[str, int], int]) -> list[int]:
    shape = list(spec.shape)
    shape[spec.batch_dim] = rows
    if spec.pad_axis is not None and (spec.name, spec.pad_axis) in lengths:
        shape[spec.pad_axis] = lengths[spec.name, spec.pad_axis]
    return shape
