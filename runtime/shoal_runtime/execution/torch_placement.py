"""Placement of PyTorch batches on the CPU, and the choice of device and dtype."""

from contextlib import AbstractContextManager

import torch

from shoal_runtime.errors import LoadError
from shoal_runtime.execution.placement import HostPlacement
from shoal_runtime.tensors.library import Library
from shoal_runtime.tensors.torch_tensors import TORCH


class CpuPlacement(HostPlacement):
    """Placement of batches as PyTorch tensors in host memory."""

    library: Library = TORCH

    def active(self) -> AbstractContextManager[None]:
        """Return a context without gradients."""
        return torch.inference_mode()


def choose_device(wanted: str) -> torch.device:
    """Return the torch device of a setting; `auto` is CUDA if available.

    Raises:
        LoadError: CUDA is required but not available, or the device number is too high.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LoadError(f"SHOAL_RUNTIME_DEVICE is {wanted}, but torch finds no CUDA device")
    device = torch.device("cuda:0" if wanted in ("auto", "cuda") else wanted)
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise LoadError(f"SHOAL_RUNTIME_DEVICE is {wanted}, but torch finds {count} CUDA devices")
    return device


def choose_dtype(wanted: str) -> torch.dtype | None:
    """Return the floating-point type of a setting; None for the model's own type."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(wanted)
