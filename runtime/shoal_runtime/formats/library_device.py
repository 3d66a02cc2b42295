"""CUDA devices of libraries that run without PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shoal_runtime.execution.placement import HostPlacement

CPU: Final = "cpu"
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class LibraryDevice:
    """Device on which a library computes."""

    name: str = CPU
    """`cpu` or `cuda:N`."""
    probe: Callable[[], object] = lambda: None
    """Computes on the device; raises an error if it is lost."""


def cuda_index(wanted: str) -> int:
    """Return the number of the GPU that a setting of the device names; 0 for `auto` and `cuda`."""
    return int(wanted.partition(":")[2] or 0)


class LibraryPlacement(HostPlacement):
    """Placement of numpy arrays for a library that copies them to its own device."""

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe = probe

    def is_lost(self, error: BaseException) -> bool:
        """Return whether the device is unusable after an error, which a trial operation decides."""
        try:
            self._probe()
        except Exception:  # libraries have no common type of errors
            return True
        return False
