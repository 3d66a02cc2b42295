"""Choice of a model's device and tensor library; imports torch only if needed."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal_runtime.errors import LoadError
from shoal_runtime.execution.placement import HostPlacement, Placement
from shoal_runtime.execution.threads import core_limit, default_threads
from shoal_runtime.packages import install_extras
from shoal_schema.resource.runtime import RuntimeSpec


@dataclass(frozen=True, slots=True)
class Machine:
    """Device, tensor library and threads for a model's forwards."""

    device: Any
    """A torch device, `cpu`, `cuda:N`, or the setting (such as `auto`) until the format's library has chosen."""
    dtype: Any
    """Floating-point type of torch; None: the model's own."""
    threads: int
    """CPU threads of one forward."""
    place: Callable[[bool], Placement]
    """Makes the placement; the argument says whether forwards may be captured in CUDA graphs."""
    compile: Callable[[Callable[[Any], Any]], Callable[[Any], Any]] | None = None
    """Compiles a forward, if the user asks for it."""


def choose_machine(
    wanted: RuntimeSpec, *, torch: bool, extra: str = "", own_device: bool = False, sharing: int = 1
) -> Machine:
    """Return device, tensor library and threads for the settings.

    Args:
        wanted: settings.
        torch: whether the model uses PyTorch.
        extra: extra of the package `shoal` with other packages that the model needs.
        own_device: whether a library without PyTorch chooses the device when it loads the model.
        sharing: number of instances that share the cores.

    Raises:
        LoadError: PyTorch or the device is missing, or a setting requires PyTorch but the model does not use it.
    """
    if torch:
        return _torch_machine(wanted, extra, sharing)
    for name, value, allowed in (
        ("DEVICE", "auto" if own_device else wanted.device.lower(), ("auto", "cpu")),
        ("DTYPE", wanted.dtype.lower(), ("auto",)),
        ("COMPILE", wanted.compile, (False,)),
        ("MEMORY_FRACTION", wanted.memory_fraction, (None,)),
    ):
        if value not in allowed:
            raise LoadError(
                f"SHOAL_RUNTIME_{name}={str(value).lower()} does not apply to this model, which runs without PyTorch."
                " Unset it"
            )
    own_choice = len(os.sched_getaffinity(0))
    threads = wanted.threads or default_threads(own_choice, core_limit(), instances=sharing)
    return Machine(wanted.device.lower() if own_device else "cpu", None, threads, lambda _: HostPlacement())


def has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    return importlib.util.find_spec("torch") is not None


def _torch_machine(wanted: RuntimeSpec, extra: str, sharing: int) -> Machine:
    if not has_torch():
        raise LoadError(f"this model needs PyTorch. {install_extras(*filter(None, ('runtime', extra)))}")
    import torch  # noqa: PLC0415 (takes seconds, and hundreds of megabytes)

    from shoal_runtime.execution.cuda import CudaDevice  # noqa: PLC0415
    from shoal_runtime.execution.stream_placement import StreamPlacement  # noqa: PLC0415
    from shoal_runtime.execution.torch_placement import CpuPlacement, choose_device, choose_dtype  # noqa: PLC0415

    # Of the whole process: forwards run one at a time.
    own_choice = torch.get_num_threads()
    torch.set_num_threads(wanted.threads or default_threads(own_choice, core_limit(), instances=sharing))
    device = choose_device(wanted.device.lower())
    if wanted.memory_fraction is not None and device.type != "cpu":  # pragma: cuda
        torch.cuda.set_per_process_memory_fraction(float(wanted.memory_fraction), device)

    def place(graphs: bool) -> Placement:  # noqa: FBT001 (its only argument)
        return CpuPlacement() if device.type == "cpu" else StreamPlacement(CudaDevice(device), graphs=graphs)

    compiled = torch.compile if wanted.compile else None
    return Machine(device, choose_dtype(wanted.dtype.lower()), torch.get_num_threads(), place, compiled)
