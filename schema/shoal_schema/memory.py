"""What the C library does with memory that is freed, in the processes that serve; others than glibc are left alone.

glibc returns large pieces to the kernel at once, and the kernel zeroes their pages anew for the next ones.
"""

import ctypes
from collections.abc import Mapping
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # glibc's <malloc.h>
M_MMAP_THRESHOLD: Final = -3
M_MMAP_MAX: Final = -4
M_ARENA_MAX: Final = -8

MAX_KEPT_BYTES: Final = 64 << 20
MAX_MMAP_THRESHOLD: Final = 32 << 20
"""The most that glibc takes; it gives allocations beyond it back at once, whatever it is told."""

KEEP_BODIES: Final = {M_MMAP_THRESHOLD: MAX_MMAP_THRESHOLD, M_TRIM_THRESHOLD: MAX_KEPT_BYTES}
"""Up to 64 MiB for the next bodies, in a process that should stay small: without, 50 page faults a 600 KB body."""
KEEP_TENSORS: Final = {M_ARENA_MAX: 1, M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}
"""All of it, for the next layer: a forward frees each layer's result when the next one has it, and the kernel's zeroing
takes a third of a convolutional network's time on a CPU. One arena, because those of threads other than the first hold
no piece of 64 MiB."""


def keep_freed_memory(options: Mapping[int, int]) -> None:
    """Set options of `mallopt`; to be called before there are threads."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)


def return_freed_memory() -> None:
    """Give back what lies unused, once: loading needs more than serving."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
