"""Interface between the pipeline and a kind of device.

`stage` and `Fetch.wait` may run in any thread, even during a `forward`; all other methods run in the device's thread.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from shoal_runtime.faults import exception_message
from shoal_runtime.tensors.fetch import Fetch, HostFetch
from shoal_runtime.tensors.library import Library, Tensor
from shoal_runtime.tensors.numpy_tensors import NUMPY


class Placement(Protocol):
    """A kind of device, on which batches are placed and run."""

    library: Library
    """Library of the batches' tensors."""
    stages_off_loop: bool
    """Whether `stage` takes long enough to run in a thread of the pool."""

    def stage(self, batch: Any) -> Any:
        """Copy a batch of host tensors to the device; may return before the copy is done."""

    def active(self) -> AbstractContextManager[None]:
        """Return the context in which forward, casts and fetches run."""

    def forward(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """Run `function` on a staged batch; may return before the device has executed it."""

    def warm(self, function: Callable[[Any], Any], batch: Any) -> None:
        """Run `function` on a staged batch once, to prepare for other batches of the same shape."""

    def measure(self, function: Callable[[Any], Any], batch: Any) -> tuple[float, Any]:
        """Run `function` on a staged batch of a warmed shape; return the seconds and the result."""

    def fetch(self, tensors: list[Tensor]) -> Fetch:
        """Start to copy the results of the last forward to host memory."""

    def is_lost(self, error: BaseException) -> bool:
        """Return whether an error means that the device is unusable."""

    def memory(self) -> tuple[int, int, int] | None:
        """Return bytes of the device's memory: used, total, and those that this process uses; or None."""


class HostPlacement:
    """Placement of batches as numpy arrays in host memory."""

    library: Library = NUMPY
    stages_off_loop = False

    def stage(self, batch: Any) -> Any:
        """Return the batch unchanged."""
        return batch

    def active(self) -> AbstractContextManager[None]:
        """Return a context without effect."""
        return nullcontext()

    def forward(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """Call the function."""
        return function(batch)

    def warm(self, function: Callable[[Any], Any], batch: Any) -> None:
        """Call the function."""
        function(batch)

    def measure(self, function: Callable[[Any], Any], batch: Any) -> tuple[float, Any]:
        """Call the function; return the seconds and the result."""
        start = time.perf_counter()
        result = function(batch)
        return time.perf_counter() - start, result

    def fetch(self, tensors: list[Tensor]) -> Fetch:
        """Return the tensors unchanged."""
        return HostFetch(tensors)

    def is_lost(self, error: BaseException) -> bool:
        """Return False: a CPU is never lost."""
        return False

    def memory(self) -> tuple[int, int, int] | None:
        """Return None: host memory is measured for the container."""
        return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on the host or on a device."""
    # torch's error is recognized by name, so that torch need not be imported.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate" in exception_message(error)
