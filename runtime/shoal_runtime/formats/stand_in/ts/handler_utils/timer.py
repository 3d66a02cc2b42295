"""TorchServe's `timed` decorator, without effect: Shoal's metrics measure whole batches."""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def timed(function: F) -> F:
    """Return a method unchanged."""
    return function
