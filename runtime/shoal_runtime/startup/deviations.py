"""Deviation of a model's outputs from its outputs in Float32."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.resource.runtime import PrecisionSpec
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32

Pair = tuple[Array, Array]
"""An output of one batch as a wire array: in Float32, and in another precision."""
CLASSES_RANK: Final = 2
"""Dimensions of an output of scores: rows and classes."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits of the deviations of outputs; None for no limit."""

    max_abs_error: float | None = None
    max_rel_error: float | None = None
    min_agreement: float | None = None

    @classmethod
    def of(cls, spec: PrecisionSpec) -> "Tolerance | None":
        """Return the limits of the settings; None if no limit is set."""
        texts = (spec.max_abs_error, spec.max_rel_error, spec.min_agreement)
        return None if texts == (None,) * 3 else cls(*(None if text is None else float(text) for text in texts))


@dataclass(frozen=True, slots=True)
class Deviation:
    """Deviation of one output from its values in Float32."""

    output: str
    max_abs_error: float | None = None
    """None for an output of integers, booleans or texts, as with the other errors."""
    mean_abs_error: float | None = None
    max_rel_error: float | None = None
    """The maximum absolute error, divided by the output's largest absolute value in Float32."""
    agreement: float | None = None
    """Share of rows with the same class (the index of the largest number of a row), or share of equal elements of an
    output without fractions. None for other outputs, and without elements."""
    non_finite: int = 0
    """Numbers that are NaN or infinite in one of both precisions only, or not alike."""
    changed_shape: str = ""
    """The shapes, if they differ; the other figures are then unknown."""


def deviation(spec: TensorSpec, pairs: Sequence[Pair]) -> Deviation:
    """Return the deviation of an output over several batches.

    Places where both precisions have the same infinity, or NaN, count as equal.
    """
    for reference, other in pairs:
        if reference.shape != other.shape:
            return Deviation(spec.name, changed_shape=f"{list(other.shape)} instead of {list(reference.shape)}")
    if not spec.datatype.startswith(("FP", "BF")):
        equal = [(reference == other).ravel() for reference, other in pairs]
        return Deviation(spec.name, agreement=_mean(equal))
    numbers = [(_numbers(reference, spec), _numbers(other, spec)) for reference, other in pairs]
    errors, scale, non_finite = [np.zeros(0)], 0.0, 0
    for reference, other in numbers:
        finite = np.isfinite(reference) & np.isfinite(other)
        alike = (reference == other) | (np.isnan(reference) & np.isnan(other))
        non_finite += int((~finite & ~alike).sum())
        with np.errstate(over="ignore"):
            errors.append(np.abs(reference[finite] - other[finite]))
        scale = max(scale, float(np.abs(reference[np.isfinite(reference)]).max(initial=0)))
    every = np.concatenate(errors)
    largest = float(every.max(initial=0))
    with np.errstate(over="ignore"):
        # Divided first, so that the sum of large errors stays finite.
        mean = float((every / max(every.size, 1)).sum())
    relative = 0.0 if largest == 0 else largest / scale if scale else float("inf")
    return Deviation(spec.name, largest, mean, relative, _class_agreement(spec, numbers), non_finite)


def _numbers(array: Array, spec: TensorSpec) -> Array:
    """Return an array as float64, with rows in the first dimension."""
    numbers = bfloat16_to_float32(array) if spec.datatype == "BF16" else array
    return np.moveaxis(np.asarray(numbers, np.float64), spec.batch_dim, 0)


def _class_agreement(spec: TensorSpec, numbers: Sequence[Pair]) -> float | None:
    """Return the share of rows with the same class; None for an output without classes."""
    scores = len(spec.shape) == CLASSES_RANK and all(other.shape[-1] > 1 for _, other in numbers)
    if not scores:
        return None
    # NaN is the largest number to `argmax`, so equal places of NaN agree.
    return _mean([reference.argmax(-1) == other.argmax(-1) for reference, other in numbers])


def _mean(equal: Sequence[Array]) -> float | None:
    every = np.concatenate([np.zeros(0, bool), *equal])
    return float(every.mean()) if every.size else None


def violation(deviations: Iterable[Deviation], limits: Tolerance) -> str:
    """Return why outputs exceed a tolerance; empty if they are within it.

    An output without fractions must be equal to Float32, unless ``min_agreement`` allows a share to differ.
    """
    for each in deviations:
        found = f"output {each.output}"
        if each.changed_shape:
            return f"{found} has another shape, {each.changed_shape}"
        if each.non_finite:
            return f"{found} has {each.non_finite} NaN or infinite numbers that Float32 does not have"
        whole = each.max_abs_error is None
        least = limits.min_agreement if limits.min_agreement is not None else 1.0 if whole else None
        if least is not None and each.agreement is not None and each.agreement < least:
            return f"{found} has agreement {each.agreement:.4g}, less than {least:g}"
        bounds = (
            ("error", each.max_abs_error, limits.max_abs_error),
            ("relative error", each.max_rel_error, limits.max_rel_error),
        )
        for what, error, limit in bounds:
            if error is not None and limit is not None and error > limit:
                return f"{found} has {what} {error:.3g}, more than {limit:g}"
        classes = limits.min_agreement is not None and each.agreement is not None
        if not whole and limits.max_abs_error is None and limits.max_rel_error is None and not classes:
            return f"no limit applies to {found}. Set runtime.precision.maxAbsError"
    return ""
