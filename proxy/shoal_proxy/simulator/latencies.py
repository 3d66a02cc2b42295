"""Batch durations on a simulated device, from a formula or a table."""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shoal_proxy.batching.pending import NEVER_S

_TERM = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(us|ms|s)")
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_P95_DEVIATIONS = 1.645
"""The 95th percentile of a normal distribution, in standard deviations."""
_GAP = 2
"""Ratio of neighbouring sizes up to which sizes between them count as measured."""


class LatencyError(Exception):
    """The latencies are malformed; the message states the expected form."""


@dataclass(frozen=True, slots=True)
class BatchDurations:
    """Durations of batches of one shape, by number of rows.

    A size between two measured sizes gets the interpolated time or, if ``padded``, the time of the larger size.
    """

    rows: Sequence[int]
    """Measured sizes, rising."""
    mean_s: Sequence[float]
    spread: Sequence[float]
    """Standard deviation, as a share of the mean."""
    padded: bool = False
    exact: bool = False
    """Whether a formula gives the time of every size."""
    unmeasured: Sequence[int] = ()
    """Sizes that the runtime pads to, and that no batch has had."""

    def guesses(self, most: int) -> str:
        """Describe the batches of up to ``most`` rows that were not measured."""
        if self.exact:
            return ""
        if most > self.rows[-1]:
            return f"batches of more than {_counted(self.rows[-1])}"
        # The runtime pads to these sizes, so no others occur.
        if self.padded:
            return ", ".join([f"batches of {_counted(size)}" for size in self.unmeasured if size < most])
        below = [1, *[size for size in self.rows if size < most]]
        gaps = [(low, high) for low, high in zip(below, self.rows, strict=False) if high > _GAP * low]
        return ", ".join([f"batches between {low} and {high} rows" for low, high in gaps])

    def at(self, rows: int) -> tuple[float, float]:
        """Return mean (s) and relative spread of the duration of a batch."""
        index = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        size = self.rows[index]
        if index == 0 or size == rows or (self.padded and size > rows):
            # A single measured size scales with its rows.
            slope_s = self.mean_s[0] / size if len(self.rows) == 1 else 0.0
            return self.mean_s[index] + max(0, rows - size) * slope_s, self.spread[index]
        below = self.rows[index - 1]
        slope_s = max(0.0, (self.mean_s[index] - self.mean_s[index - 1]) / (size - below))
        return self.mean_s[index] + (rows - size) * slope_s, self.spread[index]

    def row_s(self, most: int) -> float:
        """Return the least time per row among batches of up to ``most`` rows."""
        # Between two sizes time is linear, so the best size is one of them.
        return min([self.at(size)[0] / size for size in (*[size for size in self.rows if size < most], most)])


@dataclass(frozen=True, slots=True)
class Latencies:
    """Batch durations by shape; unknown shapes use those of the first one."""

    shapes: Mapping[str, BatchDurations]
    overhead_s: float = 0.0
    """The host's work around each batch, before and after it."""
    objective_s: float = NEVER_S
    max_batch_size: int | None = None
    """Objective and batch size of the measured service."""
    in_flight: int = 1
    """Batches that a replica of it runs at a time."""
    served_rows_per_s: float | None = None
    """The most that the proxy has served; the host's work at higher rates was never measured."""

    def sizes(self, shape: str) -> BatchDurations:
        """Return the batch durations of a shape."""
        return self.shapes.get(shape) or next(iter(self.shapes.values()))

    def sampler(self, gauss: Callable[[], float]) -> Callable[[int, str], float]:
        """Return a function that draws a batch's duration by rows and shape."""

        def latency_s(rows: int, shape: str) -> float:
            mean_s, spread = self.sizes(shape).at(rows)
            # No batch takes no time, however wide the spread.
            return mean_s * max(0.1, 1 + spread * gauss()) if spread else mean_s

        return latency_s


def parse_terms(text: str) -> Latencies:
    """Return latencies from text like ``4ms+0.15ms``: per batch, per row.

    Raises:
        LatencyError: the text has another form.
    """
    terms = [_TERM.fullmatch(term.strip()) for term in text.split("+")]
    if len(terms) != 2 or None in terms:
        raise LatencyError(f"{text!r} is not a latency: expected 4ms+0.15ms (per batch and per row), or a JSON file")
    base_s, row_s = [float(term[1]) * _UNITS_S[term[2]] for term in terms if term is not None]
    if base_s + row_s <= 0:
        raise LatencyError(f"{text!r}: a batch that takes no time cannot be simulated")
    return Latencies({"": BatchDurations((1, 2), (base_s + row_s, base_s + 2 * row_s), (0.0, 0.0), exact=True)})


def parse_document(document: object) -> Latencies:
    """Return latencies from JSON: rows to seconds, or ``/v1/latency``.

    Raises:
        LatencyError: the document has another form.
    """
    if not isinstance(document, dict) or not document:
        raise LatencyError('latencies must be a JSON object like {"1": 0.004, "8": 0.005}: rows to seconds')
    if "tables" not in document:
        rows = {key: {"rows": _count(key, "rows"), "mean_s": value} for key, value in document.items()}
        return Latencies({"": _sizes(list(rows.values()), padded=False)})
    tables = document["tables"]
    if not isinstance(tables, list) or not tables:
        raise LatencyError('"tables" is empty: the proxy has not run a batch yet. Send it some requests first.')
    shapes: dict[str, BatchDurations] = {}
    for table in tables:
        if not isinstance(table, dict):
            raise LatencyError(f'each of "tables" must be an object with "shapes" and "sizes", not {table!r}')
        named = table.get("shapes")
        # The name that a recorded trace gives to the shape.
        items = named.items() if isinstance(named, dict) else ()
        name = " ".join([f"{tensor}:{'x'.join(map(str, shape))}" for tensor, shape in items])
        shapes[name] = _sizes(table.get("sizes"), padded=table.get("padded") is True)
    objective_s, busiest = document.get("objective_s"), document.get("busiest")
    if busiest is not None and not isinstance(busiest, dict):
        raise LatencyError(f'"busiest" must be an object with "rows_per_s", not {busiest!r}')
    return Latencies(
        shapes,
        _number(document.get("overhead_s", 0.0), "overhead_s"),
        NEVER_S if objective_s is None else _number(objective_s, "objective_s") or NEVER_S,
        _count(document["max_batch_size"], "rows") if "max_batch_size" in document else None,
        _count(document.get("in_flight", 1), "batches"),
        None if busiest is None else _number(busiest.get("rows_per_s"), "rows_per_s") or None,
    )


def _sizes(entries: object, *, padded: bool) -> BatchDurations:
    if not isinstance(entries, list) or not entries:
        raise LatencyError('"sizes" must be a list like [{"rows": 1, "mean_s": 0.004, "p95_s": 0.005}]')
    # Sizes that the proxy has not measured follow the rules for missing ones.
    known = [entry for entry in entries if not isinstance(entry, dict) or entry.get("measured") is not False]
    if not known:
        raise LatencyError("none of the sizes has been measured yet. Send the proxy some requests first.")
    read: list[tuple[int, float, float]] = []
    for entry in known:
        if not isinstance(entry, dict):
            raise LatencyError(f'each of "sizes" must be an object with "rows" and "mean_s", not {entry!r}')
        size = _count(entry.get("rows"), "rows")
        mean_s = _number(entry.get("mean_s"), f"mean_s of {size} rows")
        if mean_s <= 0:
            raise LatencyError(f"mean_s of {size} rows is {mean_s:g}; it must be above 0")
        read.append((size, mean_s, _number(entry.get("p95_s", mean_s), f"p95_s of {size} rows")))
    read.sort()
    rows = [each[0] for each in read]
    if len(set(rows)) < len(rows):
        raise LatencyError(f"a number of rows occurs twice: {rows}")
    # A normal distribution is assumed around the mean.
    spread = [max(0.0, p95_s / mean_s - 1) / _P95_DEVIATIONS for _, mean_s, p95_s in read]
    unmeasured = [entry["rows"] for entry in entries if entry not in known] if padded else []
    return BatchDurations(rows, [each[1] for each in read], spread, padded, unmeasured=unmeasured)


def _counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


def _count(value: object, what: str) -> int:
    try:
        count = int(str(value))
    except ValueError:
        count = 0
    if count < 1:
        raise LatencyError(f"{value!r} is not a number of {what}: expected an integer of at least 1")
    return count


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise LatencyError(f"{name} must be a number of at least 0, not {value!r}")
    return float(value)
