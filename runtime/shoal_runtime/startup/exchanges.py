"""Detection of models that exchange the results of rows.

Such models reverse, roll, sort or permute the batch. To detect them, one batch holds copies of several rows in random
order, and each other batch holds copies of only one of these rows. The result at each place of the first batch is
compared with the results at the same place of the other batches: it must be that of the same row. All batches have one
size and therefore run the same kernels, so even the last digits are equal.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from shoal_runtime.startup.trial_rows import Row
from shoal_schema.wire.datatypes import Array

DISTINCT: Final = 6
"""Distinct rows in the batch."""
SHARE: Final = 0.25
"""Share of exchanged places that rounding, or scales of a whole batch, do not reach."""
NEAR: Final = 0.1
"""Ratio of the distances to another row's and to the row's own result, below which the result is the other row's."""

Result = Mapping[str, Array]
Compute = Callable[[Sequence[Row]], Sequence[Result]]
"""Computes a batch; returns a result for each row."""


def share_exchanged(compute: Compute, rows: Sequence[Row], size: int, rng: "np.random.Generator") -> float:
    """Return the fraction of places in a batch that get another row's result.

    The fraction is 0 if the model returns random results.

    Args:
        compute: function that runs the model on rows.
        rows: distinct rows.
        size: number of rows in a batch.
        rng: random generator for the order of the copies.
    """
    # Each row about equally often, in random order.
    order = rng.permutation(np.arange(size) % len(rows))
    mixed = [rows[which] for which in order]
    found = compute(mixed)
    own = [compute([row] * size) for row in rows]
    # By output, the largest difference between results of different rows; 1 for values that are not numbers.
    spreads: dict[str, float] = {}
    for name in found[0]:
        values = [results[0][name] for results in own]
        spreads[name] = 1.0
        if values[0].dtype.kind in "fiu" and all(each.shape == values[0].shape for each in values):
            with np.errstate(all="ignore"):
                numbers = np.asarray(values, np.float64)
                apart = numbers.max(axis=0) - numbers.min(axis=0)
            spreads[name] = float(apart[np.isfinite(apart)].max(initial=0)) or 1.0
    exchanged = 0
    for place, which in enumerate(order):
        far = _distance(found[place], own[which][place], spreads)
        others = [results[place] for other, results in enumerate(own) if other != which]
        exchanged += far > 0 and any(_distance(found[place], other, spreads) < NEAR * far for other in others)
    # The repetition that detects a random model costs a batch, so it runs only when it decides.
    if exchanged and any(_distance(*pair, spreads) > 0 for pair in zip(found, compute(mixed), strict=True)):
        return 0.0
    return exchanged / size


def _distance(left: Result, right: Result, spreads: Mapping[str, float]) -> float:
    """Return the distance of two results, in the output that differs most.

    The unit is the output's entry in ``spreads``, the largest difference between results of different rows.
    """
    farthest = 0.0
    for name, spread in spreads.items():
        one, other = left[name], right[name]
        if one.shape != other.shape:
            distance = 1.0
        elif one.dtype.kind not in "fiu":
            distance = float((one != other).any())
        elif (numbers := finite_numbers(one, other)) is None:
            distance = 1.0
        else:
            with np.errstate(over="ignore"):
                distance = float(np.abs(numbers[0] - numbers[1]).max(initial=0)) / spread
        farthest = max(farthest, distance)
    return farthest


def finite_numbers(left: Array, right: Array) -> tuple[Array, Array] | None:
    """Return the numbers of two arrays at places where both are finite.

    Returns:
        The numbers of each array; None if the arrays differ at a place where one holds NaN or infinity.
    """
    with np.errstate(all="ignore"):
        a, b = left.astype(np.float64), right.astype(np.float64)
        both = np.isfinite(a) & np.isfinite(b)
        if (~both & ~((a == b) | (np.isnan(a) & np.isnan(b)))).any():
            return None
    return a[both], b[both]
