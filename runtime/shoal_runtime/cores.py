"""How many processor cores the container may use."""

from math import ceil
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")


def default_threads(own_choice: int, limit: int | None) -> int:
    """Return torch's own choice, which is the machine's cores, but no more than the container may use.

    Threads that wait for one another all stand still when the limit stops one of them.
    """
    return own_choice if limit is None else min(own_choice, limit)


def core_limit(cgroup: Path = CGROUP) -> int | None:
    """Return the limit that Linux's control group sets, rounded up; None when there is none.

    Args:
        cgroup: where the control group is mounted, of either version.
    """
    quota_us, period_us = _version_2(cgroup) or _version_1(cgroup) or ("max", "")
    # -1 is version 1's word for max.
    return ceil(int(quota_us) / int(period_us)) if quota_us not in ("max", "-1") else None


def _version_2(cgroup: Path) -> tuple[str, str] | None:
    try:
        quota_us, period_us = (cgroup / "cpu.max").read_text().split()
    except FileNotFoundError:
        return None
    return quota_us, period_us


def _version_1(cgroup: Path) -> tuple[str, str] | None:
    try:
        texts = [(cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")]
    except FileNotFoundError:
        return None
    return texts[0], texts[1]
