"""The number and the wait policy of torch's threads. Imports little: both are set before torch is imported."""

from collections.abc import MutableMapping
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")
SPIN_COUNT: Final = "2000"
"""Spins of about 0.1 ms where `pause` takes 140 cycles: longer than the start of the next operation."""


def default_threads(own_choice: int, limit: int | None) -> int:
    """Return torch's own choice, the machine's cores, limited to the container's.

    Threads of one operation all wait when the limit stops one of them.
    """
    return own_choice if limit is None else min(own_choice, limit)


def core_limit(cgroup: Path = CGROUP) -> int | None:
    """Return the cores that the control group allows (v1 or v2), rounded up; None if there is no limit."""
    # Version 2 has one file with both numbers, version 1 two files.
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(FileNotFoundError):
            quota_us, period_us = " ".join((cgroup / name).read_text() for name in files).split()
            # Version 1 writes -1 for "max".
            return ceil(int(quota_us) / int(period_us)) if quota_us not in ("max", "-1") else None
    return None


def wait_briefly(environ: MutableMapping[str, str]) -> None:
    """Make OpenMP threads sleep soon while they wait; call before torch is imported.

    GNU OpenMP spins 300,000 times before it sleeps, 17 ms on some processors, after every operation, even if the core
    is shared with another process or container. Variables that the user has set are kept.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
