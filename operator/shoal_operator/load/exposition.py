"""A proxy's ``/metrics`` -> the rows it holds, and whether it can meet its objective."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from shoal_operator.autoscaler.law import Load

_ROWS = ("shoal_proxy_queue_rows", "shoal_proxy_in_flight_rows")
_ATTAINABLE = "shoal_proxy_objective_attainable"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one proxy says; None where it does not.

    Args:
        rows: that wait and run.
        attainable: whether a request alone would meet the latency objective.
    """

    rows: int | None = None
    attainable: bool | None = None


def read_metrics(text: str) -> Reading:
    """Return what a text says.

    Only the lines that matter are parsed: a fleet is read every two seconds.
    """
    lines = [line for line in text.splitlines() if line.startswith((*_ROWS, _ATTAINABLE))]
    try:
        values = dict(_samples(lines))
    except ValueError:
        return Reading()
    return Reading(_rows(values), {0.0: False, 1.0: True}.get(values.get(_ATTAINABLE, math.nan)))


def total_load(readings: Sequence[Reading]) -> Load | None:
    """Return the rows in all pods, or None when no pod says."""
    known = [reading.rows for reading in readings if reading.rows is not None]
    return Load(sum(known), complete=len(known) == len(readings)) if known else None


def _rows(values: dict[str, float]) -> int | None:
    rows = [values.get(name, math.nan) for name in _ROWS]
    return round(sum(rows)) if all(math.isfinite(count) for count in rows) else None


def _samples(lines: Iterable[str]) -> Iterable[tuple[str, float]]:
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            yield sample.name, sample.value
