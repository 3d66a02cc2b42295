"""Compute a service's figures from two samples of its pods."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal_schema.interfaces.load import LATENCY_BOUNDS_S, Load

Loads = Mapping[str, Load | None]
"""The load of each ready pod, by name; None if it is unreachable."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a service's load, from two samples.

    A figure is None if the samples have no data for it.
    """

    pods: int
    """Ready replicas."""
    silent: int
    """Ready replicas that did not report their load."""
    queued_rows: int
    """Rows in the queues now."""
    running_rows: int
    """Rows at the runtimes now."""
    asked_per_s: float | None = None
    """Rows requested per second, including rejected ones; forwarded rows count once."""
    answered_per_s: float | None = None
    """Rows answered per second."""
    refused_per_s: float | None = None
    """Rows rejected per second."""
    batch_rows: float | None = None
    """Mean batch size."""
    time_ms: float | None = None
    """Mean latency of a row in the replica (Little's law)."""
    queued_ms: float | None = None
    """Mean time of a row in the queue."""
    expected_ms: float | None = None
    """Expected latency of a request that arrives now, 95th percentile, of the slowest replica; None while idle."""
    p50_ms: float | None = None
    """Median latency of the requests that ended, from arrival to response."""
    p99_ms: float | None = None
    """99th percentile of these."""
    busy: float | None = None
    """Share of time with a batch at the runtime, mean of the replicas."""
    capacity_per_s: float | None = None
    """Rows per second that the replicas can serve; None unless all of them know."""


def between(before: Loads, now: Loads) -> Figures:
    """Return the figures of a service between two samples of its pods.

    New and restarted pods do not count in rates.
    """
    known = [load for load in now.values() if load is not None]
    # Counters that fell, or a clock that stood still, mean another process.
    pairs = [
        (old, new)
        for name, new in now.items()
        if (old := before.get(name))
        and new
        and new.time_s > old.time_s
        and new.arrived_rows >= old.arrived_rows
        and new.row_seconds >= old.row_seconds
    ]
    waits = [load.expected_wait_s for load in known if load.expected_wait_s is not None]
    capacities = [load.capacity.rows_per_s for load in known if load.capacity is not None]
    figures = {
        "pods": len(now),
        "silent": len(now) - len(known),
        "queued_rows": sum(load.queued_rows for load in known),
        "running_rows": sum(load.running_rows for load in known),
        "capacity_per_s": sum(capacities) if capacities and len(capacities) == len(known) else None,
    }
    rates = _rates(pairs) if pairs else {}
    # An idle replica expects no wait, which is no latency.
    busy = figures["queued_rows"] or figures["running_rows"] or rates.get("asked_per_s")
    figures["expected_ms"] = 1000 * max(waits) if waits and busy else None
    return Figures(**figures, **rates)  # type: ignore[arg-type]


def _rates(pairs: list[tuple[Load, Load]]) -> dict[str, float | None]:
    """Return the rates and means between old and new loads; ``pairs`` is not empty."""
    # Little's law: mean latency = row-seconds / rows.
    answered = _gained(pairs, "answered_rows")
    batches = _gained(pairs, "batches")
    return {
        "asked_per_s": sum((_asked(new) - _asked(old)) / _span_s(old, new) for old, new in pairs),
        "answered_per_s": sum((new.answered_rows - old.answered_rows) / _span_s(old, new) for old, new in pairs),
        "refused_per_s": sum((new.refused_rows.rows - old.refused_rows.rows) / _span_s(old, new) for old, new in pairs),
        "batch_rows": answered / batches if batches else None,
        "time_ms": 1000 * _gained(pairs, "row_seconds") / answered if answered else None,
        "queued_ms": 1000 * _gained(pairs, "queued_row_seconds") / answered if answered else None,
        "p50_ms": _percentile_ms(pairs, 0.5),
        "p99_ms": _percentile_ms(pairs, 0.99),
        "busy": sum(min(1.0, (new.busy_s - old.busy_s) / _span_s(old, new)) for old, new in pairs) / len(pairs),
    }


def _percentile_ms(pairs: list[tuple[Load, Load]], share: float) -> float | None:
    """Return the latency that a share of requests does not exceed, interpolated within its bucket.

    None without requests. Latencies beyond the last bound count as that bound.
    """
    counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
    for old, new in pairs:
        # Proxies of an older release report no counts.
        if len(old.latency_counts) == len(new.latency_counts) == len(counts):
            gained = zip(counts, new.latency_counts, old.latency_counts, strict=True)
            counts = [known + now - before for known, now, before in gained]
    wanted, below = share * sum(counts), 0
    if not wanted:
        return None
    for low_s, high_s, count in zip((0.0, *LATENCY_BOUNDS_S), LATENCY_BOUNDS_S, counts, strict=False):
        if count and below + count >= wanted:
            return 1000 * (low_s + (high_s - low_s) * (wanted - below) / count)
        below += count
    return 1000 * LATENCY_BOUNDS_S[-1]


def _asked(load: Load) -> int:
    """Return the number of rows that arrived at a replica.

    Rows that the replica forwarded to a peer are not included, since they count at the peer.
    """
    return load.arrived_rows - load.forwarded_rows


def _span_s(old: Load, new: Load) -> float:
    return new.time_s - old.time_s


def _gained(pairs: Iterable[tuple[Load, Load]], name: str) -> float:
    return float(sum(getattr(new, name) - getattr(old, name) for old, new in pairs))
