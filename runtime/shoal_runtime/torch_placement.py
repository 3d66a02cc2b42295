"""Batches of PyTorch on the CPU, and which device and type a model gets."""

from contextlib import AbstractContextManager

import torch

from shoal_runtime.errors import LoadError
from shoal_runtime.placement import HostPlacement
from shoal_runtime.tensors.library import Library
from shoal_runtime.tensors.torch_tensors import TORCH


class CpuPlacement(HostPlacement):
    """Batches stay where they are, as tensors of PyTorch."""

    library: Library = TORCH

    def active(self) -> AbstractContextManager[None]:
        """Run without gradients."""
        return torch.inference_mode()


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
