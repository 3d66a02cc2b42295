"""What the C library does with memory that is freed."""

import ctypes

KEPT_BYTES = 64 << 20
_LARGEST_KEPT_BYTES = 32 << 20
"""The most that glibc takes; it gives allocations beyond it back at once, whatever it is told."""
_M_TRIM_THRESHOLD = -1  # glibc's <malloc.h>
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of freed memory for the next bodies.

    glibc would return each large body to the kernel, and the kernel would zero the same pages for the next one: 50
    page faults a 600 KB body. Other C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
