"""What one replica can serve with its objective kept: learned, as nobody measures it before.

A request that just misses a batch waits for that one and travels in the next, so the largest batch of which two in a
row end within the objective is the one to count with. Without an objective, or where even a request alone cannot meet
it, that is the batch that serves most rows a second.
"""

from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.latency import LatencyTable
from shoal_proxy.batching.pending import NEVER_S, BatchKey
from shoal_proxy.batching.throughput import Busiest
from shoal_proxy.explaining.bound import at_its_end
from shoal_schema.bounds import Bound
from shoal_schema.load import Capacity
from shoal_schema.resource.traffic import BatchingPolicy

_MEAN_BATCHES = 1.5
"""A request waits for half a batch, on average, and travels in one."""
_LEAST = 1e-6
_MOST = 1e9


def room_rows(batcher: Batcher, key: BatchKey, table: LatencyTable) -> int:
    """Return the rows of a batch for which even a request that just missed one is answered within the objective."""
    most = 1 if batcher.limits.policy is BatchingPolicy.NONE else batcher.tables.max_rows(key)
    if batcher.objective_s == NEVER_S:
        return most
    around_s = batcher.pace.overhead_s + batcher.slack.value
    return table.largest((batcher.objective_s - around_s) / 2, most) or 1


def capacity(batcher: Batcher, busiest: Busiest | None, limiting: Bound, last: BatchKey) -> Capacity | None:
    """Return what a replica can serve, of the mix of shapes that there was; None while no batch's time is known.

    Args:
        batcher: what was learned.
        busiest: the second in which most rows were served.
        limiting: what is used up first. Where it is not the model, a second without room left says what there is.
        last: the shape that was used last, to go by until batches have run.
    """
    tables = [(BatchKey(shapes), table) for shapes, table in batcher.tables.all().items() if table.batches]
    if not tables:
        tables = [(last, batcher.tables[last])] if batcher.tables[last].known else []
    batches = sum(max(table.batches, 1) for _, table in tables)
    row_s = batch_s = rows = 0.0
    for key, table in tables:
        share = max(table.batches, 1) / batches
        best = _best(batcher, key, table)
        rows += share * best
        row_s += share * table.expected_s(best) / best
        batch_s += share * table.expected_s(best)
    if row_s <= 0:
        return None
    rows_per_s = batcher.limits.in_flight / row_s
    if limiting is not Bound.MODEL and busiest is not None and at_its_end(busiest, room_rows=int(rows)):
        rows_per_s = min(rows_per_s, busiest.rows_per_s)
    held = rows_per_s * (_MEAN_BATCHES * batch_s + batcher.pace.overhead_s)
    return Capacity(min(max(rows_per_s, _LEAST), _MOST), min(max(held, _LEAST), _MOST))


def _best(batcher: Batcher, key: BatchKey, table: LatencyTable) -> int:
    """Return the rows of the batch to count with."""
    if batcher.objective_s < NEVER_S and batcher.attainable(key):
        return room_rows(batcher, key, table)
    most = 1 if batcher.limits.policy is BatchingPolicy.NONE else batcher.tables.max_rows(key)
    return max((*(size for size in table.sizes if size < most), most), key=lambda size: size / table.expected_s(size))
