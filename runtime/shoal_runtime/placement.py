"""Where batches run: the seam between the pipeline and a kind of device.

`stage` may be called from any thread and overlaps `forward`; the rest belongs to the executor's thread.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import said


class Placement(Protocol):
    """A kind of device."""

    device: torch.device
    stages_off_loop: bool
    """Whether `stage` is worth a thread of its own."""

    def stage(self, batch: Any) -> Any:
        """Bring a batch of CPU tensors to the device; may return before the copy is done."""

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


class CpuPlacement:
    """Batches stay where they are."""

    stages_off_loop = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def stage(self, batch: Any) -> Any:
        """Return the batch."""
        return batch

    def active(self) -> AbstractContextManager[None]:
        """Run without gradients."""
        return torch.inference_mode()

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


def choose_device(wanted: str) -> torch.device:
    """Return the device that the setting asks for; `auto` is CUDA where there is one.

    Raises:
        LoadError: CUDA is asked for and there is none, or not that many.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LoadError(f"SHOAL_RUNTIME_DEVICE is {wanted}, and torch sees no CUDA device")
    device = torch.device("cuda:0" if wanted in ("auto", "cuda") else wanted)
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise LoadError(f"SHOAL_RUNTIME_DEVICE is {wanted}, and torch sees {count} CUDA devices")
    return device


def choose_dtype(wanted: str) -> torch.dtype | None:
    """Return the floating-point type asked for; None means the model's own."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(wanted)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate" in said(error)
