"""How many threads torch uses, and how they wait for one another. Light: both count before torch is imported."""

from collections.abc import MutableMapping
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")
SPIN_COUNT: Final = "2000"
"""A tenth of a millisecond where `pause` takes 140 cycles: longer than it takes to start the next operation."""


def default_threads(own_choice: int, limit: int | None) -> int:
    """Return torch's own choice, which is the machine's cores, but no more than the container may use.

    Threads that wait for one another all stand still when the limit stops one of them.
    """
    return own_choice if limit is None else min(own_choice, limit)


def core_limit(cgroup: Path = CGROUP) -> int | None:
    """Return the cores that Linux's control group allows, of either version, rounded up; None when it sets no limit."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(FileNotFoundError):
            quota_us, period_us = " ".join((cgroup / name).read_text() for name in files).split()
            # -1 is version 1's word for max.
            return ceil(int(quota_us) / int(period_us)) if quota_us not in ("max", "-1") else None
    return None


def wait_briefly(environ: MutableMapping[str, str]) -> None:
    """Have threads that wait for a partner sleep soon; to be called before torch is imported.

    GNU's OpenMP spins 300,000 times before it sleeps, 17 ms on some processors, at the end of every operation. It spins
    all that time for a partner whose core somebody else has: callers, preprocess, another container. Who sets one of
    these variables has chosen, and is left alone.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
