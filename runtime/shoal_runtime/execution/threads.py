"""Number and wait policy of torch's threads, which are set before torch is imported."""

from collections.abc import MutableMapping
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")
SPIN_COUNT: Final = "2000"
"""Spins of about 0.1 ms where `pause` takes 140 cycles: longer than the start of the next operation."""


def default_threads(own_choice: int, limit: int | None, *, instances: int = 1) -> int:
    """Return one instance's share of torch's own number of threads, limited to the container's cores.

    Threads of one operation wait for each other, so more threads than cores are slower.
    """
    cores = own_choice if limit is None else min(own_choice, limit)
    return max(1, cores // instances)


def core_limit(cgroup: Path = CGROUP) -> int | None:
    """Return the cores that the control group (v1 or v2) allows, rounded up; None without a limit."""
    # Version 2 has one file with both numbers, version 1 two files.
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(FileNotFoundError):
            quota_us, period_us = " ".join((cgroup / name).read_text() for name in files).split()
            # Version 1 writes -1 for "max".
            return ceil(int(quota_us) / int(period_us)) if quota_us not in ("max", "-1") else None
    return None


def wait_briefly(environ: MutableMapping[str, str]) -> None:
    """Set a short spin time for waiting OpenMP threads; call before torch is imported.

    By default GNU OpenMP spins 300,000 times before a thread sleeps, 17 ms on some processors, even if the core is
    shared with another process. Variables that the user has set are kept.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
