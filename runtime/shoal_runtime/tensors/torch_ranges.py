"""Range checks of casts between torch types: no wrap-around, and no finite number becomes infinite.

Floating-point numbers are rounded to nearest; NaN and infinities are allowed. Numbers that already have the declared
type are not read.
"""

from functools import cache

import torch
from torch import Tensor

_SMALL_UNSIGNED = (torch.uint16, torch.uint32)
"""Types that torch can store but not compare."""


def holds_all(wanted: torch.dtype, source: torch.dtype) -> bool:
    """Return whether one type holds the range of another; floating-point types may lose precision."""
    if source in (wanted, torch.bool):
        return True
    (low, high), (needed_low, needed_high) = _limits(wanted), _limits(source)
    return low <= needed_low and needed_high <= high


def misfits(tensor: Tensor, cast: Tensor) -> Tensor | None:
    """Return a mask of the numbers that a cast has changed beyond rounding.

    The mask is computed on the tensor's device without synchronizing. It is None if the new type holds the whole range
    of the old type.
    """
    # Usually decided by the types alone, without reading numbers.
    if holds_all(cast.dtype, tensor.dtype):
        return None
    if cast.is_floating_point():
        return torch.isinf(cast) & torch.isfinite(tensor)
    low, high = _limits(cast.dtype)
    # Torch compares no unsigned type above 8 bits.
    if tensor.dtype == torch.uint64:
        whole = tensor.view(torch.int64)
    else:
        whole = tensor.to(torch.int64) if tensor.dtype in _SMALL_UNSIGNED else tensor
    own_low, own_high = _limits(whole.dtype)
    if tensor.dtype == torch.uint64:
        low = 0  # numbers above the range of int64 are negative in the view
    below = whole < low if low > own_low else None
    above = whole > high if high < own_high else None
    if below is None or above is None:
        return above if below is None else below
    return below | above


@cache
def _limits(dtype: torch.dtype) -> tuple[float, float]:
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max
