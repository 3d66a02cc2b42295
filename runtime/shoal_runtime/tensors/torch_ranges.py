"""Which numbers a type of torch holds: a result that is cast must not wrap, nor become an infinity.

Floating-point outputs take the nearest number there is, and NaN and infinities as they are; only a finite number that
would become an infinity is refused. What is in the declared type already costs nothing.
"""

from functools import cache

import torch
from torch import Tensor

_SMALL_UNSIGNED = (torch.uint16, torch.uint32)
"""Types that torch stores but hardly computes with."""


def holds_all(wanted: torch.dtype, source: torch.dtype) -> bool:
    """Return whether a type holds every number of another, floating-point ones to their precision."""
    if source in (wanted, torch.bool):
        return True
    (low, high), (needed_low, needed_high) = _limits(wanted), _limits(source)
    return low <= needed_low and needed_high <= high


def misfits(tensor: Tensor, cast: Tensor) -> Tensor | None:
    """Return where a tensor's numbers are lost in `cast`, the same in another type; None where none can be.

    Runs on the tensor's device and waits for nothing.
    """
    if holds_all(cast.dtype, tensor.dtype):
        return None
    if cast.is_floating_point():
        return torch.isinf(cast) & torch.isfinite(tensor)
    low, high = _limits(cast.dtype)
    whole = _comparable(tensor)
    own_low, own_high = _limits(whole.dtype)
    if tensor.dtype == torch.uint64:
        low = 0  # as int64, what is above its range is negative
    below = whole < low if low > own_low else None
    above = whole > high if high < own_high else None
    if below is None or above is None:
        return above if below is None else below
    return below | above


def _comparable(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.uint64:
        return tensor.view(torch.int64)
    return tensor.to(torch.int64) if tensor.dtype in _SMALL_UNSIGNED else tensor


@cache
def _limits(dtype: torch.dtype) -> tuple[float, float]:
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max
