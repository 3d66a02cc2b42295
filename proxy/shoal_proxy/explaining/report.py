"""The measurements of a proxy that `sentences` explains and ``GET /v1/latency`` shows."""

from dataclasses import asdict, dataclass
from math import isinf
from typing import Any

from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.latency import LatencyTable
from shoal_proxy.batching.pending import NEVER_S, BatchKey
from shoal_proxy.batching.rates import BusiestSecond
from shoal_proxy.batching.row_checks.checks import RowChecks
from shoal_proxy.explaining.bound import bound, is_saturated
from shoal_proxy.explaining.capacity import room_rows
from shoal_schema.interfaces.bounds import Bound
from shoal_schema.resource.traffic import BatchingPolicy

_CLOSE = 1.15
"""Ratio below which two bounds of a time count as one figure: the sizes of a table are an eighth apart."""


@dataclass(frozen=True, slots=True)
class FigureBounds:
    """Measured bounds of a quantity; ``high`` is None if there is no upper bound."""

    low: float
    high: float | None

    @property
    def known(self) -> bool:
        """Return whether the bounds are close enough to count as one number."""
        return self.high is not None and self.high <= _CLOSE * self.low


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """The measurements of a proxy; None if unknown. Times in ms, rates in rows/s."""

    model: str
    shapes: dict[str, list[int]]
    """Shapes of the inputs that the times are of; empty where all have one shape."""
    known_shapes: int
    """Number of shapes with known times."""
    policy: BatchingPolicy
    max_rows: int
    configured_rows: int
    max_delay_ms: float
    in_flight: int
    objective_ms: float | None
    batches: int
    """Batches that have run with inputs of this shape."""
    alone_ms: FigureBounds | None
    """A request alone: the model's 95th percentile, the host's work, and how late responses are."""
    most_rows: int
    """Most rows of a batch, also by the device's memory."""
    full_ms: FigureBounds | None
    """A batch of ``most_rows``, likewise."""
    measured_rows: int
    """The largest batch whose time was measured; times of larger ones are guesses."""
    overhead_ms: float
    """The host's work around a batch; 0 before the first request."""
    late_ms: float
    """Delay of responses beyond the expected time, 75th percentile."""
    allowed_rows: int
    """Most rows of a batch with which a request that just missed one meets the objective."""
    busiest: BusiestSecond | None
    """The second in which most rows were served; None before the first request."""
    model_rows_per_s: FigureBounds | None
    """Rate that the model's own time allows with batches of ``allowed_rows``, without the host's work."""
    model_alone_ms: FigureBounds | None
    """The model's own mean time for a request alone."""
    model_full_ms: FigureBounds | None
    """The model's own mean time for a batch of ``most_rows``."""
    waiting_rows: int
    running_batches: int
    padding: float
    """Share of the elements sent that were padding."""
    capped_rows: int | None
    """Rows that fit into the device's memory, where they are fewer than the limit."""
    rejected: dict[str, int]
    bound: Bound
    """The resource that is exhausted first when the load grows."""
    at_its_end: bool
    """Whether the busiest second was saturated."""
    independent: bool = True
    """Whether each row gets its own result, according to row checks."""
    checked_rows: int = 0
    """Rows run again to verify that."""
    varying_rows: int = 0
    """Rows that got another result in a later run, without a violation; 0 for few."""
    unchecked: str = ""
    """The reason why rows are not checked; empty where they are."""
    precision: str = ""
    """The precision that the runtime chose by measurement; empty if it chose none."""


def report(  # noqa: PLR0913 (the last have defaults)
    batcher: Batcher,
    busiest: BusiestSecond | None,
    *,
    model: str,
    padding: float,
    rejected: dict[str, int],
    checks: RowChecks | None = None,
    precision: str = "",
) -> LatencyReport:
    """Return the measurements for the input shape used last."""
    key = last_key(batcher)
    table = batcher.tables[key]
    limits, around_s = batcher.limits, batcher.pace.overhead_s + batcher.slack.value
    objective_s = batcher.objective_s
    most = 1 if limits.policy is BatchingPolicy.NONE or limits.alone else batcher.tables.max_rows(key)
    allowed = room_rows(batcher, key, table)
    known = table.known
    low_s, high_s = table.bounds(allowed)
    # A batch whose time has no upper bound guarantees no rate.
    rate = FigureBounds(limits.in_flight * allowed / high_s, limits.in_flight * allowed / low_s if low_s else None)
    return LatencyReport(
        model=model,
        shapes={name: list(shape) for name, shape in key.shapes},
        known_shapes=sum(each.known for each in batcher.tables.all().values()),
        policy=limits.policy,
        max_rows=limits.max_rows,
        configured_rows=batcher.configured_rows,
        max_delay_ms=1000 * limits.max_delay_s,
        in_flight=limits.in_flight,
        objective_ms=None if objective_s == NEVER_S else 1000 * objective_s,
        batches=table.batches,
        alone_ms=_time_ms(table, 1, around_s) if known else None,
        most_rows=most,
        full_ms=_time_ms(table, most, around_s) if known else None,
        measured_rows=table.largest_measured,
        overhead_ms=1000 * batcher.pace.overhead_s,
        late_ms=1000 * batcher.slack.value,
        allowed_rows=allowed,
        busiest=busiest,
        model_rows_per_s=rate if known else None,
        model_alone_ms=_span_ms(table.bounds(1)) if known else None,
        model_full_ms=_span_ms(table.bounds(most)) if known else None,
        waiting_rows=batcher.queue.rows,
        running_batches=len(batcher.running),
        padding=padding,
        capped_rows=batcher.tables.capped_rows,
        rejected=rejected,
        bound=limiting(batcher, busiest),
        at_its_end=is_saturated(busiest, room_rows=allowed),
        independent=checks is None or not checks.violated,
        checked_rows=0 if checks is None else checks.checked_rows,
        varying_rows=0 if checks is None else checks.evidence.varies,
        unchecked="Off" if checks is None else checks.unchecked,
        precision=precision,
    )


def limiting(batcher: Batcher, busiest: BusiestSecond | None) -> Bound:
    """Return the bottleneck for the input shape used last."""
    key = last_key(batcher)
    table, in_flight = batcher.tables[key], batcher.limits.in_flight
    low_s, high_s = table.bounds(room_rows(batcher, key, table))
    return bound(
        busiest,
        batches=table.batches,
        # Several batches run at a time, each taking its share of the device.
        model_ms=(1000 * low_s / in_flight, 1000 * high_s / in_flight),
        host_ms=1000 * batcher.pace.overhead_s,
    )


def _time_ms(table: LatencyTable, rows: int, around_s: float) -> FigureBounds:
    low_s, high_s = table.bounds(rows)
    return _span_ms(((1 + table.margin) * low_s + around_s, (1 + table.margin) * high_s + around_s))


def _span_ms(bounds_s: tuple[float, float]) -> FigureBounds:
    low_s, high_s = bounds_s
    return FigureBounds(1000 * low_s, None if isinf(high_s) else 1000 * high_s)


def last_key(batcher: Batcher) -> BatchKey:
    """Return the batch key of the input shape used last.

    Shapes with measured batch times are preferred.
    """
    tables = batcher.tables.all()
    # A shape that waits for its first batch has no known time.
    known = (shapes for shapes in reversed(tables) if tables[shapes].known)
    return BatchKey(shapes=next(known, next(reversed(tables), ())))


def latency_document(batcher: Batcher, busiest: BusiestSecond | None) -> dict[str, Any]:
    """Return latency tables and served rates as JSON, for `shoal simulate`."""
    return {
        "tables": [
            {
                "shapes": {name: list(shape) for name, shape in shapes},
                "padded": bool(table.padded_sizes),
                "sizes": [
                    {"rows": rows, "mean_s": mean_s, "p95_s": high_s, "measured": seen}
                    for rows, mean_s, high_s, seen in table.measurements()
                ],
            }
            for shapes, table in batcher.tables.all().items()
            if table.known
        ],
        "overhead_s": batcher.pace.overhead_s,
        "busiest": None if busiest is None else asdict(busiest),
        "objective_s": None if batcher.objective_s == NEVER_S else batcher.objective_s,
        "max_batch_size": batcher.limits.max_rows,
        "in_flight": batcher.limits.in_flight,
    }
