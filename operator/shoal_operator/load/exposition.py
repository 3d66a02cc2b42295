"""A proxy's ``/metrics`` -> the rows it holds."""

import math
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

_ROWS = ("shoal_proxy_queue_rows", "shoal_proxy_in_flight_rows")


def rows_held(text: str) -> int | None:
    """Return the rows that wait and run in one proxy, or None when the text does not say.

    Only the lines that matter are parsed: a fleet is read every two seconds.
    """
    lines = [line for line in text.splitlines() if line.startswith(_ROWS)]
    try:
        values = dict(_samples(lines))
    except ValueError:
        return None
    if set(values) != set(_ROWS) or not all(math.isfinite(value) for value in values.values()):
        return None
    return round(sum(values.values()))


def _samples(lines: Iterable[str]) -> Iterable[tuple[str, float]]:
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            yield sample.name, sample.value
