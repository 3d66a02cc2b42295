"""What a model computes with, and on: chosen when its format is known, so that torch is imported only for its own."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal_runtime.errors import LoadError
from shoal_runtime.placement import HostPlacement, Placement
from shoal_runtime.threads import core_limit, default_threads
from shoal_schema.resource.runtime import RuntimeSpec


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a model's forwards run.

    Args:
        device: torch's own, or `cpu`.
        dtype: the floating-point type asked for, torch's own; None when the model may choose.
        threads: of the CPU, for one forward.
        place: makes the placement; its argument says whether forwards may be captured in CUDA graphs.
        compile: makes a forward quicker, where the user asks for it.
    """

    device: Any
    dtype: Any
    threads: int
    place: Callable[[bool], Placement]
    compile: Callable[[Callable[[Any], Any]], Callable[[Any], Any]] | None = None


def choose_machine(wanted: RuntimeSpec, *, torch: bool, extra: str = "") -> Machine:
    """Return what the settings ask for, with torch or without; ``extra`` brings what else the model needs.

    Raises:
        LoadError: torch is not here, there is no such device, or a setting has no meaning without torch.
    """
    return _torch_machine(wanted, extra) if torch else _host_machine(wanted)


def has_torch() -> bool:
    """Return whether torch is installed; it is not imported for this."""
    return importlib.util.find_spec("torch") is not None


def _host_machine(wanted: RuntimeSpec) -> Machine:
    for name, value, good in (
        ("DEVICE", wanted.device.lower(), ("auto", "cpu")),
        ("DTYPE", wanted.dtype.lower(), ("auto",)),
        ("COMPILE", wanted.compile, (False,)),
    ):
        if value not in good:
            raise LoadError(
                f"SHOAL_RUNTIME_{name}={str(value).lower()} is for models of PyTorch, which this one is not: unset it"
            )
    threads = wanted.threads or default_threads(len(os.sched_getaffinity(0)), core_limit())
    return Machine("cpu", None, threads, lambda _: HostPlacement())


def _torch_machine(wanted: RuntimeSpec, extra: str) -> Machine:
    if not has_torch():
        extras = ",".join(filter(None, ("runtime", extra)))
        raise LoadError(f'this model needs PyTorch: pip install "shoal[{extras}]", or the runtime image that has it')
    import torch  # noqa: PLC0415 (seconds, and hundreds of megabytes)

    from shoal_runtime.cuda import CudaPlacement  # noqa: PLC0415
    from shoal_runtime.torch_placement import CpuPlacement, choose_device, choose_dtype  # noqa: PLC0415

    torch.set_num_threads(wanted.threads or default_threads(torch.get_num_threads(), core_limit()))
    device = choose_device(wanted.device.lower())

    def place(graphs: bool) -> Placement:  # noqa: FBT001 (its one argument)
        return CpuPlacement() if device.type == "cpu" else CudaPlacement(device, graphs=graphs)

    compiled = torch.compile if wanted.compile else None
    return Machine(device, choose_dtype(wanted.dtype.lower()), torch.get_num_threads(), place, compiled)
