"""Where batches run: the seam between the pipeline and a kind of device.

`stage` may be called from any thread and overlaps `forward`; the rest belongs to the executor's thread.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from shoal_runtime.faults import said
from shoal_runtime.tensors.library import Library, Tensor
from shoal_runtime.tensors.numpy_tensors import NUMPY


class Placement(Protocol):
    """A kind of device."""

    library: Library
    """What the batches' tensors are."""
    stages_off_loop: bool
    """Whether `stage` is worth a thread of its own."""

    def stage(self, batch: Any) -> Any:
        """Bring a batch of tensors on the host to the device; may return before the copy is done."""

    def active(self) -> AbstractContextManager[None]:
        """Return the context in which forward, casts and fetches run."""

    def forward(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """Run `function` on a staged batch."""

    def warm(self, function: Callable[[Any], Any], batch: Any) -> None:
        """Run `function` once on a staged batch and prepare for others of its shape."""

    def measure(self, function: Callable[[Any], Any], batch: Any) -> tuple[float, Any]:
        """Return how many seconds `function` takes on a batch that it has been warmed for, and its result."""

    def fetch(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the tensors on the CPU, complete."""

    def is_lost(self, error: BaseException) -> bool:
        """Return whether the device cannot be used any more after this error."""

    def memory(self) -> tuple[int, int] | None:
        """Return the device's bytes in use, whoever uses them, and all of them; None where it has none of its own."""


class HostPlacement:
    """Batches stay where they are, as arrays of numpy."""

    library: Library = NUMPY
    stages_off_loop = False

    def stage(self, batch: Any) -> Any:
        """Return the batch."""
        return batch

    def active(self) -> AbstractContextManager[None]:
        """Change nothing."""
        return nullcontext()

    def forward(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """Call the function."""
        return function(batch)

    def warm(self, function: Callable[[Any], Any], batch: Any) -> None:
        """Call the function."""
        function(batch)

    def measure(self, function: Callable[[Any], Any], batch: Any) -> tuple[float, Any]:
        """Time one call."""
        start = time.perf_counter()
        result = function(batch)
        return time.perf_counter() - start, result

    def fetch(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the tensors; they are there already."""
        return tensors

    def is_lost(self, error: BaseException) -> bool:
        """Return False: a CPU does not go away."""
        return False

    def memory(self) -> tuple[int, int] | None:
        """Return None: the host's memory is the container's to tell."""
        return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on any device."""
    # torch's is told by its name: who raised it has imported torch, nobody else need.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate" in said(error)
