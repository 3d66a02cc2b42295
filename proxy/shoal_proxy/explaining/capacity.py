"""Capacity of a replica within its objective, estimated from completed batches.

A request that just misses a batch waits for it and runs in the next. So the capacity is the throughput of the largest
batch size at which two successive batches end within the objective. Without an objective, or if even a single request
misses it, the capacity is the throughput of the batch size with the most rows per second.
"""

from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.latency import LatencyTable
from shoal_proxy.batching.pending import NEVER_S, BatchKey
from shoal_proxy.batching.rates import BusiestSecond
from shoal_proxy.explaining.bound import is_saturated
from shoal_schema.interfaces.bounds import Bound
from shoal_schema.interfaces.load import Capacity
from shoal_schema.resource.traffic import BatchingPolicy

_MEAN_BATCHES = 1.5
"""A request waits for half a batch, on average, and runs in one."""
_LEAST = 1e-6
_MOST = 1e9
"""Bounds of reported figures."""


def room_rows(batcher: Batcher, key: BatchKey, table: LatencyTable) -> int:
    """Return the largest batch size at which a request that just missed a batch still meets the objective."""
    most = 1 if batcher.limits.policy is BatchingPolicy.NONE else batcher.tables.max_rows(key)
    if batcher.objective_s == NEVER_S:
        return most
    around_s = batcher.pace.overhead_s + batcher.slack.value
    return table.largest((batcher.objective_s - around_s) / 2, most) or 1


def capacity(batcher: Batcher, busiest: BusiestSecond | None, limiting: Bound, last: BatchKey) -> Capacity | None:
    """Return the capacity of a replica for recent shapes; None if unknown.

    Args:
        batcher: source of the measured batch times.
        busiest: the second in which most rows were served.
        limiting: the bottleneck. If it is not the model, the rows of a saturated second are the capacity.
        last: the most recent shape, used until batches have run.
    """
    tables = [(BatchKey(shapes), table) for shapes, table in batcher.tables.all().items() if table.batches]
    if not tables:
        tables = [(last, batcher.tables[last])] if batcher.tables[last].known else []
    batches = sum(max(table.batches, 1) for _, table in tables)
    row_s = batch_s = rows = 0.0
    for key, table in tables:
        # The mix of shapes, weighted by their batches.
        share = max(table.batches, 1) / batches
        most = 1 if batcher.limits.policy is BatchingPolicy.NONE else batcher.tables.max_rows(key)
        if batcher.objective_s < NEVER_S and batcher.can_meet_objective(key):
            best = room_rows(batcher, key, table)
        else:  # the batch that serves most rows per second
            sizes = (*(size for size in table.sizes if size < most), most)
            best = max(sizes, key=lambda size: size / table.mean_s(size))
        rows += share * best
        row_s += share * table.mean_s(best) / best
        batch_s += share * table.mean_s(best)
    if row_s <= 0:
        return None
    rows_per_s = batcher.limits.in_flight / row_s
    # Where host or proxy are the bound, only a measured second shows what they allow.
    if limiting is not Bound.MODEL and busiest is not None and is_saturated(busiest, room_rows=int(rows)):
        rows_per_s = min(rows_per_s, busiest.rows_per_s)
    # Little's law: the rows that wait and run at this rate.
    held = rows_per_s * (_MEAN_BATCHES * batch_s + batcher.pace.overhead_s)
    return Capacity(min(max(rows_per_s, _LEAST), _MOST), min(max(held, _LEAST), _MOST))
