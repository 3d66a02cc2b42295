"""Rates of load over a short and a long window, from the loads that a service's pods report in each tick.

Proxies report counters and integrals, so the difference of two readings is exact at any interval. A pod that does not
respond keeps its last rates for one window, then counts as zero. A decreased counter means a restart: the next reading
is treated as the first.

Reports are untrusted, so the load of each pod is limited. A pod counts with at most the rows that it can hold. With
three or more pods, the load of one pod may require at most four replicas. This limit does not apply if the median of
the pods reports at least a quarter of that pod's rows. So a busy pod among idle ones counts, and a wrong report costs
at most four replicas. With one or two pods, no majority can correct a wrong report.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median_low
from typing import NamedTuple

from shoal_operator.scaling.targets import ScalingTargets, target_rows
from shoal_schema.interfaces.load import Capacity, Load

SHORT_S = 6.0
"""Three ticks, the shortest time in which a burst differs from noise."""
LONG_S = 60.0
"""The window for the count, and the time for which a pod without readings is remembered."""
NEGLIGIBLE_SHARE = 0.01
"""Share of rejected rows that is ignored."""
MAX_WEIGHT = 4.0
"""Maximum weight of one pod: in replicas, and as a multiple of the median."""
_MIN_PODS_FOR_MEDIAN = 3
"""Minimum number of pods for a median to be meaningful."""
_MIN_TICK_S = 1e-3
"""Duration of a first tick."""
_DROPPED_DIFFERENCES = 4
"""Differences to drop: the edges of two bursts within a minute."""
_MIN_DIFFERENCES = 6
"""Minimum number of differences for a dispersion."""
_NORMAL = NormalDist()
_COUNTERS = (
    *("time_s", "arrived_rows", "answered_rows", "forwarded_rows"),
    *("row_seconds", "queued_row_seconds", "busy_s"),
)


class Rates(NamedTuple):
    """Mean load of one pod or of all pods: rows, and rows per second."""

    rows: float = 0.0
    queued_rows: float = 0.0
    offered_rows_per_s: float = 0.0
    """Arrived rows, including rejected ones; rows forwarded to a peer count there."""
    answered_rows_per_s: float = 0.0
    rejected_rows_per_s: float = 0.0
    busy: float = 0.0
    """Mean number of pods with a batch at the runtime."""

    @property
    def rejects(self) -> bool:
        """Whether more than a negligible share of the rows is rejected."""
        return self.rejected_rows_per_s > NEGLIGIBLE_SHARE * self.offered_rows_per_s


@dataclass(frozen=True, slots=True)
class Signals:
    """Load of a service at one tick of the autoscaler."""

    short: Rates
    """Mean over the short window."""
    long: Rates
    """Mean over the long window."""
    last: Rates
    """The newest tick."""
    queued_rows: int
    """Rows in the queues now."""
    capacity: Capacity | None
    """Capacity of one replica: the median of the reported ones."""
    ready: int
    """Pods that should have been read."""
    complete: bool
    """All pods were read; otherwise replicas may rise but not fall."""
    dispersion: float = 0.0
    """Variance over mean of arrived rows: 1 for independent rows, n for groups of n; 0 while unknown."""
    busiest_rows_per_s: float = 0.0
    """Arrived rows in the busiest tick of the long window."""


@dataclass(slots=True)
class _Pod:
    load: Load
    received_s: float
    rates: Rates


class _Tick(NamedTuple):
    time_s: float
    passed_s: float
    rates: Rates
    whole: bool
    """It contains no pod's first reading."""


class LoadHistory:
    """The readings of one service's pods in the last minute."""

    def __init__(self) -> None:
        self._pods: dict[str, _Pod] = {}
        self._ticks: deque[_Tick] = deque()

    def record(self, loads: Mapping[str, Load | None], now_s: float, targets: ScalingTargets) -> Signals | None:
        """Record one tick's loads; return the signals, or None if no pod was read.

        Args:
            loads: by uid, the load of each ready pod; None for an unreadable pod.
            now_s: monotonic time (s); must not decrease.
            targets: scaling targets of the service's spec.
        """
        # Pods without a reading keep their last rates for one window.
        received = {uid: load for uid, load in loads.items() if load is not None}
        self._pods = {
            uid: pod
            for uid, pod in self._pods.items()
            if uid in received or (uid in loads and now_s - pod.received_s < LONG_S)
        }
        if not received:
            return None
        known = self._pods.keys() >= received.keys()
        for uid, load in received.items():
            self._pods[uid] = _updated_pod(self._pods.get(uid), load, now_s)
        passed_s = now_s - self._ticks[-1].time_s if self._ticks else 0.0
        # The median capacity, on which one wrong or slow pod has little effect.
        known_capacities = [load.capacity for load in received.values() if load.capacity is not None]
        capacity = None
        if known_capacities:
            rows_per_s = median_low(each.rows_per_s for each in known_capacities)
            capacity = Capacity(rows_per_s, median_low(each.rows for each in known_capacities))
        rates = plausible_rates([pod.rates for pod in self._pods.values()], targets, capacity)
        last = Rates(*(sum(column) for column in zip(*rates, strict=True))) if rates else Rates()
        self._ticks.append(_Tick(now_s, max(passed_s, _MIN_TICK_S), last, known))
        # Only ticks of the long window are kept.
        while self._ticks[0].time_s <= now_s - LONG_S:
            self._ticks.popleft()
        # Dispersion from the differences of successive ticks, as growing load is not uneven load; without the largest
        # differences, which are the edges of bursts and reach the recommendation by themselves.
        counts = [tick.rates.offered_rows_per_s * tick.passed_s for tick in self._ticks if tick.whole]
        squares = sorted([(later - earlier) ** 2 for earlier, later in pairwise(counts)])
        kept = squares[:-_DROPPED_DIFFERENCES]
        dispersion = 0.0
        if len(kept) >= _MIN_DIFFERENCES and sum(counts) > 0:
            share = len(kept) / len(squares)
            edge = _NORMAL.inv_cdf((1 + share) / 2)
            # Share of the variance that the smaller differences have, for normally distributed ones.
            rest = 1 - 2 * edge * _NORMAL.pdf(edge) / share
            dispersion = sum(kept) / len(kept) / (2 * rest) / (sum(counts) / len(counts))
        return Signals(
            short=self._mean(SHORT_S),
            long=self._mean(LONG_S),
            last=last,
            queued_rows=int(sum(_rows([load.queued_rows for load in received.values()], targets, capacity))),
            capacity=capacity,
            ready=len(loads),
            complete=len(received) == len(loads),
            dispersion=dispersion,
            busiest_rows_per_s=max([tick.rates.offered_rows_per_s for tick in self._ticks]),
        )

    def rows(self) -> dict[str, float]:
        """Return by uid the mean rows of each pod between its last two readings."""
        return {uid: pod.rates.rows for uid, pod in self._pods.items()}

    def _mean(self, window_s: float) -> Rates:
        begin_s = self._ticks[-1].time_s - window_s
        weighed: list[tuple[float, Rates]] = []
        # Each tick counts for the part of its duration within the window.
        for tick in reversed(self._ticks):
            if tick.time_s <= begin_s:
                break
            weighed.append((min(tick.passed_s, tick.time_s - begin_s), tick.rates))
        total_s = sum(weight for weight, _ in weighed)
        return Rates(*(sum(weight * rates[at] for weight, rates in weighed) / total_s for at in range(len(Rates()))))


def _updated_pod(pod: _Pod | None, load: Load, now_s: float) -> _Pod:
    # Counters that went back: the proxy has restarted, and only its current rows are known.
    if pod is None or any(getattr(load, name) < getattr(pod.load, name) for name in _COUNTERS):
        return _Pod(load, now_s, Rates(load.queued_rows + load.running_rows, load.queued_rows))
    # The same reading again.
    if load.time_s == pod.load.time_s:
        return pod
    return _Pod(load, now_s, _between(pod.load, load, now_s - pod.received_s))


def _between(before: Load, after: Load, passed_s: float) -> Rates:
    # The pod's clock is exact and the operator's late, but a clock that stands still must not inflate the rates.
    span_s = max(after.time_s - before.time_s, passed_s / 2, _MIN_TICK_S)
    forwarded = after.forwarded_rows - before.forwarded_rows
    return Rates(
        rows=(after.row_seconds - before.row_seconds) / span_s,
        queued_rows=(after.queued_row_seconds - before.queued_row_seconds) / span_s,
        offered_rows_per_s=max(0, after.arrived_rows - before.arrived_rows - forwarded) / span_s,
        answered_rows_per_s=(after.answered_rows - before.answered_rows) / span_s,
        rejected_rows_per_s=max(0, after.refused_rows.rows - before.refused_rows.rows) / span_s,
        busy=min(1.0, (after.busy_s - before.busy_s) / span_s),
    )


def plausible_rates(pods: Sequence[Rates], targets: ScalingTargets, capacity: Capacity | None) -> list[Rates]:
    """Return the pods' rates, limited to plausible values."""
    rows_per_s = math.inf if capacity is None else MAX_WEIGHT * capacity.rows_per_s
    rows, queued, offered, answered, refused, busy = zip(*pods, strict=True)
    columns = [_rows(rows, targets, capacity), _rows(queued, targets, capacity)]
    columns += [_limited_by_median(each, rows_per_s) for each in (offered, answered, refused)]
    return [Rates(*pod) for pod in zip(*columns, busy, strict=True)]


def _rows(loads: Sequence[float], targets: ScalingTargets, capacity: Capacity | None) -> list[float]:
    return [
        min(each, targets.most_rows) for each in _limited_by_median(loads, MAX_WEIGHT * target_rows(targets, capacity))
    ]


def _limited_by_median(loads: Sequence[float], worth: float) -> list[float]:
    """Return the values, each limited to a maximum.

    The maximum is ``worth``, or a multiple of the median if that is larger. One or two values are not limited.
    """
    if len(loads) < _MIN_PODS_FOR_MEDIAN:
        return list(loads)
    most = max(worth, MAX_WEIGHT * median_low(loads))
    return [min(each, most) for each in loads]
