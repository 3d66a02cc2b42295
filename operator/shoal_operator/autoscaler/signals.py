"""What the pods of a service say, tick by tick -> rates over a short and a long window.

A proxy tells counters and integrals, so the difference between two readings is exact however far apart they are. A pod
that falls silent keeps its last rates for one window; then it counts for nothing. A pod whose counters went back has
begun again: its next reading is the first.

A pod may say anything. No more rows count than one pod can hold; and of three or more, none counts for more than four
replicas, unless the middle one says a quarter of as much: one hot pod among idle ones counts, one that lies costs a few
replicas. Of one or two nobody can tell which of them is right.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median_low
from typing import NamedTuple

from shoal_operator.autoscaler.aim import Aim, target_rows
from shoal_schema.load import Capacity, Load

SHORT_S = 6.0
"""Three ticks: as soon as a burst can be told from noise."""
LONG_S = 60.0
"""What the count of replicas goes by, and how long a silent pod is remembered."""
HICCUP = 0.01
"""One row in a hundred."""
WORTH = 4.0
"""Replicas that a single pod may ask for, and times what the middle one asks for."""
_OUTVOTED = 3
"""So many pods there must be for one to be outvoted."""
_LEAST_S = 1e-3
"""Time that a first tick stands for."""
_EDGES = 4
"""Of two bursts that begin and end within a minute."""
_LEAST_KEPT = 6
"""Differences without which nothing is known of dispersion."""
_NORMAL = NormalDist()
_COUNTERS = (
    *("time_s", "arrived_rows", "answered_rows", "handed_over_rows"),
    *("row_seconds", "queued_row_seconds", "busy_s"),
)


class Rates(NamedTuple):
    """Of one pod or of all: mean rows in the system, and rows a second."""

    rows: float = 0.0
    queued_rows: float = 0.0
    offered_rows_per_s: float = 0.0
    """Asked for, refused ones included; what was handed to a sibling counts there."""
    answered_rows_per_s: float = 0.0
    refused_rows_per_s: float = 0.0
    busy: float = 0.0
    """Pods with a batch at the runtime."""

    @property
    def refuses(self) -> bool:
        """Return whether more is refused than a hiccup explains."""
        return self.refused_rows_per_s > HICCUP * self.offered_rows_per_s


@dataclass(frozen=True, slots=True)
class Signals:
    """What is known of a service at one tick.

    Args:
        short, long: means over the two windows.
        last: the newest tick alone.
        queued_rows: waiting now.
        capacity: of one replica, by the median of those that say.
        ready: pods that should have been heard.
        complete: all of them were; otherwise replicas may rise and not fall.
        dispersion: of arrivals: the variance of the rows that come in a time over their mean; 1 where they come one by
            one and independently, n where in clumps of n; 0 while it is not known.
        busiest_rows_per_s: asked for in the busiest tick of the long window.
    """

    short: Rates
    long: Rates
    last: Rates
    queued_rows: int
    capacity: Capacity | None
    ready: int
    complete: bool
    dispersion: float = 0.0
    busiest_rows_per_s: float = 0.0


@dataclass(slots=True)
class _Pod:
    load: Load
    heard_s: float
    rates: Rates


class _Tick(NamedTuple):
    time_s: float
    passed_s: float
    rates: Rates
    whole: bool
    """Of no pod it was the first reading."""


class Memory:
    """What one service's pods said in the last minute."""

    def __init__(self) -> None:
        self._pods: dict[str, _Pod] = {}
        self._ticks: deque[_Tick] = deque()

    def hear(self, said: Mapping[str, Load | None], now_s: float, aim: Aim) -> Signals | None:
        """Take what pods say now, by uid, and return what is known; None where no pod says anything.

        Args:
            said: of each ready pod; None of one that cannot be read.
            now_s: monotonic time (s); must not go back.
            aim: of the spec: what one replica is for, and can hold.
        """
        heard = {uid: load for uid, load in said.items() if load is not None}
        self._pods = {
            uid: pod
            for uid, pod in self._pods.items()
            if uid in heard or (uid in said and now_s - pod.heard_s < LONG_S)
        }
        if not heard:
            return None
        known = self._pods.keys() >= heard.keys()
        for uid, load in heard.items():
            self._pods[uid] = _heard(self._pods.get(uid), load, now_s)
        passed_s = now_s - self._ticks[-1].time_s if self._ticks else 0.0
        capacity = _middle([load.capacity for load in heard.values() if load.capacity is not None])
        rates = believed([pod.rates for pod in self._pods.values()], aim, capacity)
        last = Rates(*(sum(column) for column in zip(*rates, strict=True))) if rates else Rates()
        self._ticks.append(_Tick(now_s, max(passed_s, _LEAST_S), last, known))
        while self._ticks[0].time_s <= now_s - LONG_S:
            self._ticks.popleft()
        # Dispersion from the differences of successive ticks, as growing load is not uneven load; without the largest
        # differences, which are the edges of bursts and reach the want by themselves.
        counts = [tick.rates.offered_rows_per_s * tick.passed_s for tick in self._ticks if tick.whole]
        squares = sorted([(later - earlier) ** 2 for earlier, later in pairwise(counts)])
        kept = squares[:-_EDGES]
        dispersion = 0.0
        if len(kept) >= _LEAST_KEPT and sum(counts):
            share = len(kept) / len(squares)
            edge = _NORMAL.inv_cdf((1 + share) / 2)
            # Share of the variance that the smaller differences have, for normally distributed ones.
            rest = 1 - 2 * edge * _NORMAL.pdf(edge) / share
            dispersion = sum(kept) / len(kept) / (2 * rest) / (sum(counts) / len(counts))
        return Signals(
            short=self._mean(SHORT_S),
            long=self._mean(LONG_S),
            last=last,
            queued_rows=int(sum(_rows([load.queued_rows for load in heard.values()], aim, capacity))),
            capacity=capacity,
            ready=len(said),
            complete=len(heard) == len(said),
            dispersion=dispersion,
            busiest_rows_per_s=max([tick.rates.offered_rows_per_s for tick in self._ticks]),
        )

    def rows(self) -> dict[str, float]:
        """Return the rows of each pod that is remembered, by uid: a mean since the reading before."""
        return {uid: pod.rates.rows for uid, pod in self._pods.items()}

    def _mean(self, window_s: float) -> Rates:
        begin_s = self._ticks[-1].time_s - window_s
        weighed: list[tuple[float, Rates]] = []
        for tick in reversed(self._ticks):
            if tick.time_s <= begin_s:
                break
            weighed.append((min(tick.passed_s, tick.time_s - begin_s), tick.rates))
        total_s = sum(weight for weight, _ in weighed)
        return Rates(*(sum(weight * rates[at] for weight, rates in weighed) / total_s for at in range(len(Rates()))))


def _heard(pod: _Pod | None, load: Load, now_s: float) -> _Pod:
    """Return what is known of a pod after a reading."""
    # Counters that went back: the proxy has restarted, and only its current rows are known.
    if pod is None or any(getattr(load, name) < getattr(pod.load, name) for name in _COUNTERS):
        return _Pod(load, now_s, Rates(load.queued_rows + load.running_rows, load.queued_rows))
    if load.time_s == pod.load.time_s:
        return pod  # nothing new
    return _Pod(load, now_s, _between(pod.load, load, now_s - pod.heard_s))


def _between(before: Load, after: Load, passed_s: float) -> Rates:
    # The pod's own clock is exact, ours comes late; one that hardly moves while ours does would make rates of nothing.
    span_s = max(after.time_s - before.time_s, passed_s / 2, _LEAST_S)
    handed_over = after.handed_over_rows - before.handed_over_rows
    return Rates(
        rows=(after.row_seconds - before.row_seconds) / span_s,
        queued_rows=(after.queued_row_seconds - before.queued_row_seconds) / span_s,
        offered_rows_per_s=max(0, after.arrived_rows - before.arrived_rows - handed_over) / span_s,
        answered_rows_per_s=(after.answered_rows - before.answered_rows) / span_s,
        refused_rows_per_s=max(0, after.refused_rows.rows - before.refused_rows.rows) / span_s,
        busy=min(1.0, (after.busy_s - before.busy_s) / span_s),
    )


def believed(pods: Sequence[Rates], aim: Aim, capacity: Capacity | None) -> list[Rates]:
    """Return what each pod counts for."""
    rows_per_s = math.inf if capacity is None else WORTH * capacity.rows_per_s
    rows, queued, offered, answered, refused, busy = zip(*pods, strict=True)
    columns = [_rows(rows, aim, capacity), _rows(queued, aim, capacity)]
    columns += [_outvoted(each, rows_per_s) for each in (offered, answered, refused)]
    return [Rates(*pod) for pod in zip(*columns, busy, strict=True)]


def _rows(said: Sequence[float], aim: Aim, capacity: Capacity | None) -> list[float]:
    return [min(each, aim.most_rows) for each in _outvoted(said, WORTH * target_rows(aim, capacity))]


def _outvoted(said: Sequence[float], worth: float) -> list[float]:
    """Return the same, but none above both ``worth`` and so many times the middle one."""
    if len(said) < _OUTVOTED:
        return list(said)
    most = max(worth, WORTH * median_low(said))
    return [min(each, most) for each in said]


def _middle(said: list[Capacity]) -> Capacity | None:
    """Return the median: one pod that lies, or that is slow, changes little."""
    if not said:
        return None
    return Capacity(median_low(each.rows_per_s for each in said), median_low(each.rows for each in said))
