"""Whether a batch gives rows the results of other rows: reversed, rolled, sorted, dealt out in another order.

The batch holds copies of a few rows in random order. Each place is compared with what a batch of copies of its own row
has there, and with what copies of the other rows have. Batches of one size take the same kernels, so a row's own result
is the same in both, whatever the datatype: also labels and texts, and numbers whose differences are small beside them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from shoal_runtime.trial_rows import Row
from shoal_schema.wire.datatypes import Array

DISTINCT: Final = 6
"""Rows that the batch holds copies of."""
SHARE: Final = 0.25
"""Share of places with another row's result that rounding and scales of a whole batch do not reach."""
NEAR: Final = 0.1
"""Ratio of the distances to another row's result and to the own one, below which the result is the other's."""

Result = Mapping[str, Array]
Answer = Callable[[Sequence[Row]], Sequence[Result]]
"""Answers a batch with a result for each row."""


def share_exchanged(answer: Answer, rows: Sequence[Row], size: int, rng: "np.random.Generator") -> float:
    """Return the share of places of a batch that have the result of another row; 0 where the model is random.

    Args:
        answer: what the model does with a batch.
        rows: that differ.
        size: of the batch.
        rng: of the order of the copies.
    """
    order = rng.permutation(np.arange(size) % len(rows))
    mixed = [rows[which] for which in order]
    found = answer(mixed)
    own = [answer([row] * size) for row in rows]
    spreads = {name: _spread([results[0][name] for results in own]) for name in found[0]}
    exchanged = 0
    for place, which in enumerate(order):
        far = _distance(found[place], own[which][place], spreads)
        others = [results[place] for other, results in enumerate(own) if other != which]
        exchanged += far > 0 and any(_distance(found[place], other, spreads) < NEAR * far for other in others)
    # Asked once more only where that decides something.
    if exchanged and any(_distance(*pair, spreads) > 0 for pair in zip(found, answer(mixed), strict=True)):
        return 0.0
    return exchanged / size


def _spread(values: Sequence[Array]) -> float:
    """Return how far the results of different rows are apart; 1 for what is no number."""
    first = values[0]
    if first.dtype.kind not in "fiu" or any(each.shape != first.shape for each in values):
        return 1.0
    with np.errstate(all="ignore"):
        numbers = np.asarray(values, np.float64)
        apart = numbers.max(axis=0) - numbers.min(axis=0)
    return float(apart[np.isfinite(apart)].max(initial=0)) or 1.0


def _distance(left: Result, right: Result, spreads: Mapping[str, float]) -> float:
    """Return how far two results are apart, in spreads of the output in which they are farthest."""
    return max((_apart(left[name], right[name], spread) for name, spread in spreads.items()), default=0.0)


def _apart(left: Array, right: Array, spread: float) -> float:
    if left.shape != right.shape:
        return 1.0
    if left.dtype.kind not in "fiu":
        return float((left != right).any())
    numbers = finite_numbers(left, right)
    with np.errstate(over="ignore"):
        return 1.0 if numbers is None else float(np.abs(numbers[0] - numbers[1]).max(initial=0)) / spread


def finite_numbers(left: Array, right: Array) -> tuple[Array, Array] | None:
    """Return the numbers of two arrays of one shape where both are finite; None if they differ where one is not."""
    with np.errstate(all="ignore"):
        a, b = left.astype(np.float64), right.astype(np.float64)
        both = np.isfinite(a) & np.isfinite(b)
        if (~both & ~((a == b) | (np.isnan(a) & np.isnan(b)))).any():
            return None
    return a[both], b[both]
