"""Which row counts and lengths a batch is padded to."""

from bisect import bisect_left
from collections.abc import Sequence


def next_size(count: int, sizes: Sequence[int]) -> int:
    """Return the smallest of `sizes` (increasing) that holds `count`; when none does, `count`."""
    index = bisect_left(sizes, count)
    return sizes[index] if index < len(sizes) else count


def powers_of_two(limit: int) -> tuple[int, ...]:
    """Return 1, 2, 4... below `limit`, then `limit`: at most half of a padded batch is padding."""
    sizes = [1]
    while sizes[-1] * 2 < limit:
        sizes.append(sizes[-1] * 2)
    return (*sizes, limit) if limit > 1 else (1,)
