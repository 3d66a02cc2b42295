"""What one attack did to the others, as figures and a verdict. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

from benchmarks.soak.neighbours import Tally
from benchmarks.soak.properties import Round
from benchmarks.soak.watching import Watch

MEGABYTE = 1e6
MOST_GROWTH_BYTES = 400 * MEGABYTE
"""How much more memory the proxy may hold under any attack than before all of them: its bounds' sum and a bit."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One attack: rates in requests a second, memory in megabytes, times in milliseconds."""

    attack: str
    right_per_s: float
    calm_per_s: float
    p99_ms: float
    wrong: int
    refused: int
    failed: Mapping[str, int]
    proxy_mb: float
    proxy_after_mb: float
    runtime_mb: float
    descriptors: int
    unready: int
    ready_ms: float
    attacker: Mapping[str, int]

    @property
    def share(self) -> float:
        """Return which part of their calm rate the neighbours kept."""
        return self.right_per_s / self.calm_per_s if self.calm_per_s else 0.0


def figures(
    attack: str,
    *,
    calm_per_s: float,
    tally: Tally,
    seen: Watch,
    after_bytes: int,
    counts: Mapping[str, int],
    duration_s: float,
) -> Figures:
    """Combine the reports of neighbours, watch and attacker."""
    return Figures(
        attack,
        right_per_s=tally.right / duration_s,
        calm_per_s=calm_per_s,
        p99_ms=percentile_99(tally.latencies_s) * 1e3,
        wrong=tally.wrong,
        refused=tally.refused,
        failed=dict(tally.failed),
        proxy_mb=seen.proxy_bytes / MEGABYTE,
        proxy_after_mb=after_bytes / MEGABYTE,
        runtime_mb=seen.runtime_bytes / MEGABYTE,
        descriptors=seen.descriptors,
        unready=seen.unready,
        ready_ms=seen.slowest_ready_s * 1e3,
        attacker=counts,
    )


def percentile_99(values_s: Sequence[float]) -> float:
    """Return the 99th percentile; 0 for fewer than two values."""
    return quantiles(values_s, n=100)[98] if len(values_s) > 1 else 0.0


def faults(row: Figures, calm_mb: float, may_fail: frozenset[str]) -> list[str]:
    """Return what must not be, in words; nothing when all is well."""
    found = [f"{row.wrong} wrong answers"] if row.wrong else []
    found += [f"{count} neighbours got {what}" for what, count in row.failed.items() if what not in may_fail]
    if row.attacker.get("smuggled"):
        found.append(f"{row.attacker['smuggled']} requests were smuggled")
    if not row.right_per_s:
        found.append("no neighbour was served")
    if row.proxy_mb - calm_mb > MOST_GROWTH_BYTES / MEGABYTE:
        found.append(f"the proxy grew from {calm_mb:.0f} to {row.proxy_mb:.0f} MB")
    if row.unready and not may_fail:
        found.append(f"/readyz said no {row.unready} times")
    return found


def lines(rows: Sequence[Figures]) -> list[str]:
    """Return the table."""
    head = f"{'attack':<12} {'right/s':>8} {'share':>6} {'p99 ms':>7} {'wrong':>5} {'503':>6} {'failed':>6} "
    head += f"{'proxy MB':>8} {'after':>6} {'runtime':>7} {'fds':>5} {'unready':>7} {'readyz ms':>9}"
    return [head, *(line(row) for row in rows)]


def line(row: Figures) -> str:
    """Return a row of the table."""
    return (
        f"{row.attack:<12} {row.right_per_s:>8.0f} {row.share:>6.2f} {row.p99_ms:>7.0f} {row.wrong:>5} "
        f"{row.refused:>6} {sum(row.failed.values()):>6} {row.proxy_mb:>8.0f} {row.proxy_after_mb:>6.0f} "
        f"{row.runtime_mb:>7.0f} "
        f"{row.descriptors:>5} {row.unready:>7} {row.ready_ms:>9.0f}"
    )


def document(rows: Sequence[Figures], harm: Mapping[str, Sequence[str]], rounds: Sequence[Round]) -> dict[str, Any]:
    """Return what goes into the results file."""
    return {
        "attacks": {row.attack: {**asdict(row), "share": row.share} for row in rows},
        "harm": dict(harm),
        "properties": [asdict(one) for one in rounds],
    }
