"""What the C library does with memory that is freed: keep it for the next batch."""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # glibc's <malloc.h>
_M_MMAP_MAX: Final = -4
_M_ARENA_MAX: Final = -8
_NEVER: Final = -1


def keep_freed_memory() -> None:
    """Have freed memory stay in the process; to be called before there are threads.

    A forward frees each layer's result when the next one has it. glibc returns large pieces to the kernel at once,
    which zeroes their pages anew for the next layer: a third of a convolutional network's time on a CPU. One arena,
    because those of threads other than the first hold no piece of 64 MiB. Other C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)


def return_freed_memory() -> None:
    """Give back what lies unused, once: loading needs more than serving."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
