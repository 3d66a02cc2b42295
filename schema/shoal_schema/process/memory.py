"""Peak memory of a process, and tuning of glibc's allocator; other C libraries are left alone.

By default glibc returns large blocks to the kernel, which has to zero pages again for the next blocks.
"""

import ctypes
import resource
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # glibc's <malloc.h>
M_MMAP_THRESHOLD: Final = -3
M_MMAP_MAX: Final = -4
M_ARENA_MAX: Final = -8

MAX_KEPT_BYTES: Final = 64 << 20
MAX_MMAP_THRESHOLD: Final = 32 << 20
"""Maximum that glibc accepts; it always returns larger blocks at once."""

KEEP_BODIES: Final = {M_MMAP_THRESHOLD: MAX_MMAP_THRESHOLD, M_TRIM_THRESHOLD: MAX_KEPT_BYTES}
"""For a process that should stay small: keeps up to 64 MiB. Without it a body of 600 KB costs 50 page faults."""
KEEP_TENSORS: Final = {M_ARENA_MAX: 1, M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}
"""For inference: keeps everything.

A forward frees each layer's result after the next layer, and zeroing those pages takes a third of a convolutional
network's time on a CPU. There is only one arena, because a secondary arena cannot hold a block of 64 MiB.
"""


_STATUS: Final = Path("/proc/self/status")


def peak_memory_bytes() -> int:
    """Return the largest memory that this process has used."""
    # On Linux without the memory of the program that started this one.
    with suppress(OSError, IndexError, ValueError):
        return int(_STATUS.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def keep_freed_memory(options: Mapping[int, int]) -> None:
    """Set options of glibc's `mallopt`; must be called before threads exist."""
    # Other C libraries have no mallopt.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)


def return_freed_memory() -> None:
    """Return free memory to the kernel once.

    Called after loading a model, which needs more memory than serving it.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
