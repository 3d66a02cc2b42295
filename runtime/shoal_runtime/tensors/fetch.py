"""Copies of tensors from a device to host memory."""

from typing import Protocol

from shoal_runtime.tensors.library import Tensor


class Fetch(Protocol):
    """Copies of tensors to host memory, which may be in progress."""

    ready: bool
    """Whether `wait` returns at once."""
    device_s: float | None
    """Seconds that the device spent on the forward before the copies, set by `wait`; None if they are not measured."""

    def wait(self) -> list[Tensor]:
        """Wait until the copies are complete, and return the tensors. Call it once."""


class HostFetch:
    """Tensors that are in host memory already."""

    ready = True
    device_s: float | None = None

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def wait(self) -> list[Tensor]:
        """Return the tensors."""
        return self._tensors
