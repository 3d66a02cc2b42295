"""Whether a row's answer depends on the rows beside it: tried before a model is ready whose graph nobody here wrote.

One made-up row is answered first in one batch and last in another, among other strangers. Batches of one size take the
same kernels, and what these do for a row depends neither on where it stands nor on its neighbours: in TF32 and bfloat16
no more than in FP32. So a difference comes from the graph. Batches of another size take other kernels, whose sums
differ in the last digits: they are only wondered at.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from shoal_runtime.handlers.signature import Signature
from shoal_runtime.handlers.spec import TensorSpec
from shoal_runtime.warmup import shapes
from shoal_schema.wire.datatypes import DTYPES, Array

ROWS: Final = 4
"""Few, so that what each does to the others shows."""
DOUBTFUL: Final = 0.01
"""Of the largest number in an output: beyond what half precision and kernels of other sizes make."""
LEAKING: Final = 0.1
"""Beyond what scales do that a graph finds for a whole batch, as of quantized activations."""

Batch = dict[str, Array]
Run = Callable[[Batch], Mapping[str, Array]]


class Leak(Exception):
    """The row's answer clearly depends on its neighbours; says how."""


def can_be_tried(signature: Signature) -> bool:
    """Return whether rows can be made up."""
    return all(spec.datatype != "BYTES" for spec in signature.inputs)


def doubts(run: Run, signature: Signature, *, ids: int) -> Iterator[str]:
    """Yield what is odd about the answers of a row among others.

    Args:
        run: answers a batch.
        signature: whose inputs `can_be_tried`.
        ids: how many numbers from 0 up are made up for integers, which may count the rows of a table.

    Raises:
        Leak: the row's answer depends on other rows, beyond doubt.
    """
    trials = (_Trial(run, signature, ids, seed) for seed in range(2))
    first = next(trials)
    if told := first.differ(first.among, first.again):
        yield f"{told} when asked again: it is random, or depends on what was asked before"
        return
    told = first.differ(first.among, first.elsewhere)
    # A tie between two numbers may fall either way once.
    if told and first.leaks and next(trials).leaks:
        raise Leak(told)
    if told:
        yield f"{told} among other rows: it depends a little on who shares the batch"
    elif first.alone is not None and (told := first.differ(first.among, first.alone)):
        yield f"{told} alone and among other rows"


class _Trial:
    """Answers of one row: among others, among strangers elsewhere, once more as at first, and alone."""

    def __init__(self, run: Run, signature: Signature, ids: int, seed: int) -> None:
        self._specs = {spec.name: spec for spec in signature.outputs}
        rng = np.random.default_rng(seed)
        sizes = signature.allowed_batch_sizes
        rows = next((size for size in sizes if size > 1), min(signature.max_batch_size, ROWS))

        def made_up(rows: int) -> Batch:
            every = shapes(signature, rows)
            return {spec.name: _numbers(spec, every[spec.name], ids, rng) for spec in signature.inputs}

        batch, strangers = made_up(rows), made_up(rows)
        dims = {spec.name: spec.batch_dim for spec in signature.inputs}
        one = {name: np.take(array, [0], dims[name]) for name, array in batch.items()}
        moved = {
            name: np.concatenate([np.delete(array, rows - 1, dims[name]), one[name]], dims[name])
            for name, array in strangers.items()
        }
        self.among = self._row(run(batch), 0)
        self.elsewhere = self._row(run(moved), rows - 1)
        self.again = self._row(run(batch), 0)
        self.alone = self._row(run(one), 0) if not sizes or 1 in sizes else None

    @property
    def leaks(self) -> bool:
        """Whether a number differs beyond doubt; what is counted or named may turn on its last digit."""
        return any(
            self._specs[name].datatype[0] in "FB"
            and array.dtype != object
            and array.dtype.kind != "b"
            and _difference(array, self.elsewhere[name]) > LEAKING
            for name, array in self.among.items()
        )

    def differ(self, left: Batch, right: Batch) -> str:
        """Return which output differs, and how much; nothing where none does."""
        far = {name: _difference(array, right[name]) for name, array in left.items()}
        name = max(far, key=far.__getitem__)
        return f"output {name} of a row differs by {far[name]:.0%}" if far[name] > DOUBTFUL else ""

    def _row(self, outputs: Mapping[str, Array], row: int) -> Batch:
        return {
            name: _floats(np.take(outputs[name], [row], spec.batch_dim), spec) for name, spec in self._specs.items()
        }


def _difference(left: Array, right: Array) -> float:
    """Return how far apart two answers are, by the larger's largest number; 1 where they cannot be compared."""
    if left.shape != right.shape:
        return 1.0
    if left.dtype.kind not in "fiu":
        return float((left != right).any())
    with np.errstate(all="ignore"):
        a, b = left.astype(np.float64), right.astype(np.float64)
        both = np.isfinite(a) & np.isfinite(b)
        scale = max(np.abs(a[both]).max(initial=0), np.abs(b[both]).max(initial=0), np.finfo(np.float32).tiny)
        odd = (~both & ~((a == b) | (np.isnan(a) & np.isnan(b)))).any()
        return DOUBTFUL * 2 if odd else float(np.abs(a[both] - b[both]).max(initial=0) / scale)


def _numbers(spec: TensorSpec, shape: Any, ids: int, rng: "np.random.Generator") -> Array:
    if spec.datatype == "BF16":
        bits: Array = rng.standard_normal(shape, np.float32).view(np.uint32) >> 16
        return bits.astype(DTYPES["BF16"])
    if spec.datatype.startswith("FP"):
        return np.asarray(rng.standard_normal(shape), DTYPES[spec.datatype])
    # Bytes are pixels, where others may be indices.
    high = 128 if spec.datatype in ("INT8", "UINT8") else 2 if spec.datatype == "BOOL" else ids
    return np.asarray(rng.integers(0, high, shape), DTYPES[spec.datatype])


def _floats(array: Array, spec: TensorSpec) -> Array:
    """Return what bits of bfloat16 mean; all else as it is."""
    return (array.astype(np.uint32) << 16).view(np.float32) if spec.datatype == "BF16" else array
