"""Two looks at a service's pods -> what happened between them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal_schema.load import Load

Loads = Mapping[str, Load | None]
"""What each ready pod says, by its name; None: nothing."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A service between two looks. Of means, None where there was nothing to take the mean of.

    Args:
        pods: that are ready.
        silent: of them, those that say nothing.
        queued_rows: that wait now.
        running_rows: at the runtimes now.
        asked_per_s: rows that callers asked for, refused ones included; once each, however many pods they met.
        answered_per_s: rows.
        refused_per_s: rows.
        batch_rows: rows in a batch, mean.
        time_ms: of a row in the system, mean (Little's law).
        queued_ms: of it, waiting.
        expected_ms: until the answer of a request that came now, 95th percentile, of the pod with the longest.
        busy: share of time with a batch at the runtime, mean of the pods.
        capacity_per_s: rows that the pods can serve, where all of them know.
    """

    pods: int
    silent: int
    queued_rows: int
    running_rows: int
    asked_per_s: float | None = None
    answered_per_s: float | None = None
    refused_per_s: float | None = None
    batch_rows: float | None = None
    time_ms: float | None = None
    queued_ms: float | None = None
    expected_ms: float | None = None
    busy: float | None = None
    capacity_per_s: float | None = None


def between(before: Loads, now: Loads) -> Figures:
    """Return what happened; of pods that came since, or began anew, only what they hold counts."""
    said = [load for load in now.values() if load is not None]
    pairs = [(old, new) for name, new in now.items() if (old := before.get(name)) and new and _goes_on(old, new)]
    waits = [load.expected_wait_s for load in said if load.expected_wait_s is not None]
    knows = [load.capacity.rows_per_s for load in said if load.capacity is not None]
    figures = {
        "pods": len(now),
        "silent": len(now) - len(said),
        "queued_rows": sum(load.queued_rows for load in said),
        "running_rows": sum(load.running_rows for load in said),
        "expected_ms": 1000 * max(waits) if waits else None,
        "capacity_per_s": sum(knows) if knows and len(knows) == len(said) else None,
    }
    return Figures(**figures, **(_gains(pairs) if pairs else {}))  # type: ignore[arg-type]


def _goes_on(old: Load, new: Load) -> bool:
    """Return whether both are of one process."""
    return new.time_s > old.time_s and new.arrived_rows >= old.arrived_rows and new.row_seconds >= old.row_seconds


def _gains(pairs: list[tuple[Load, Load]]) -> dict[str, float | None]:
    answered = _gained(pairs, "answered_rows")
    batches = _gained(pairs, "batches")
    return {
        "asked_per_s": sum((_asked(new) - _asked(old)) / _span_s(old, new) for old, new in pairs),
        "answered_per_s": sum((new.answered_rows - old.answered_rows) / _span_s(old, new) for old, new in pairs),
        "refused_per_s": sum((new.refused_rows.rows - old.refused_rows.rows) / _span_s(old, new) for old, new in pairs),
        "batch_rows": answered / batches if batches else None,
        "time_ms": 1000 * _gained(pairs, "row_seconds") / answered if answered else None,
        "queued_ms": 1000 * _gained(pairs, "queued_row_seconds") / answered if answered else None,
        "busy": _mean(min(1.0, (new.busy_s - old.busy_s) / _span_s(old, new)) for old, new in pairs),
    }


def _asked(load: Load) -> int:
    """Return what was asked for here and not somewhere else besides."""
    return load.arrived_rows - load.handed_over_rows


def _span_s(old: Load, new: Load) -> float:
    return new.time_s - old.time_s


def _gained(pairs: Iterable[tuple[Load, Load]], name: str) -> float:
    return float(sum(getattr(new, name) - getattr(old, name) for old, new in pairs))


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)
