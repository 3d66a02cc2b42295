"""Measurements of a load test at rising request rates.

The load is open: requests leave at random times at a given rate, independent of the responses, as from many clients. A
closed loop (N clients, each waiting for its response) slows down with the server and hides the queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

ENOUGH: Final = 0.95
"""Share of requests that must be answered in time."""
MOST: Final = 0.95
"""Share of responses that define the length of a run; the slowest ones are outliers."""
SLOWER: Final = 5.0
SLOWER_BY_MS: Final = 10.0
"""Without an objective, a response is in time up to `SLOWER` times the unloaded latency, or `SLOWER_BY_MS` above it."""
BUSY: Final = 0.85
"""Share of one core above which the load generator cannot send on time."""
LATE_MS: Final = 5.0
LATE: Final = 0.25
"""Maximum delay of the 95th percentile of sent requests, in ms and as a share of the latency."""
STRETCHES: Final = 10
"""Equal parts of a run that separate a short busy period of the machine from a rate that is too high."""
PARTS: Final = ("queue", "batch", "runtime", "rest")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one request; times are seconds from the start of the run."""

    due_s: float
    """Scheduled time of sending."""
    sent_s: float
    ended_s: float
    """When the response was complete."""
    status: int
    """HTTP status; 0 without a response."""
    parts_ms: Mapping[str, float]
    """Queue, batch and runtime from ``Server-Timing``; empty without it."""
    rows: int | None = None
    """Size of its batch; None if the server does not report it."""

    @property
    def latency_ms(self) -> float:
        """Time from the scheduled sending to the response (ms), which includes a late start."""
        return 1000 * (self.ended_s - self.due_s)


@dataclass(frozen=True, slots=True)
class Run:
    """The requests of one run at a constant rate, and their outcomes."""

    seconds: float
    outcomes: Sequence[Outcome]
    busy: float
    """Share of one core that the load generator used."""


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Measurement at one request rate, over all runs; times are of requests with status 200."""

    offered_per_s: float
    runs: int
    sent: int
    in_time: int
    """Requests answered within the limit."""
    answered: int
    refused: int
    late: int
    failed: int
    bad_stretches: float
    """Share of the tenths of all runs in which too few requests were in time."""
    backlog: float
    """Growth of the latency, in seconds per second; 0.1 means 10 % more load than capacity."""
    answered_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    parts_ms: Mapping[str, float]
    batch_rows: float | None
    sent_late_ms: float
    busy: float

    @property
    def generator_bound(self) -> bool:
        """Whether the load generator was too busy to send on time."""
        return self.busy > BUSY or self.sent_late_ms > max(LATE_MS, LATE * self.p95_ms)

    @property
    def in_time_share(self) -> float:
        """Share of requests answered in time."""
        return self.in_time / self.sent if self.sent else 0.0


def limit_ms(alone_ms: float, objective_ms: float | None = None) -> float:
    """Return the latency up to which a response is in time: the objective, otherwise a multiple of ``alone_ms``.

    ``alone_ms`` is the latency on an idle server. A lower objective is ignored, since the server cannot meet it.
    """
    if objective_ms is not None and objective_ms > alone_ms:
        return objective_ms
    return max(SLOWER * alone_ms, alone_ms + SLOWER_BY_MS)


def summarize(offered_per_s: float, runs: Sequence[Run], within_ms: float) -> LoadStep:
    """Summarize all runs at one rate; a response within ``within_ms`` is in time."""
    outcomes = [each for run in runs for each in run.outcomes]
    good = [each for each in outcomes if each.status == 200]
    latencies = sorted(each.latency_ms for each in good)
    # Status 0 means no response within the timeout; 408 and 504 mean that the server gave up.
    refused = sum(each.status in (429, 503) for each in outcomes)
    late = sum(each.status in (0, 408, 504) for each in outcomes)
    sizes = [each.rows for each in good if each.rows is not None]
    stretches = [stretch for run in runs for stretch in _stretches(run, STRETCHES) if stretch]
    bad = [sum(_in_time(each, within_ms) for each in part) < ENOUGH * len(part) for part in stretches]
    # The mean of each part; the rest is the network, HTTP and this machine.
    timed = [each for each in good if each.parts_ms]
    parts: dict[str, float] = {}
    if timed:
        parts = {name: sum(each.parts_ms.get(name, 0.0) for each in timed) / len(timed) for name in PARTS[:3]}
        mean_ms = sum(each.latency_ms for each in timed) / len(timed)
        parts["rest"] = max(0.0, mean_ms - sum(parts.values()))
    # Time until the responses were complete, extrapolated from 95 % of them.
    spent_s = 0.0
    for run in runs:
        answered = [each for each in run.outcomes if each.status == 200]
        typical_s = _median([each.latency_ms for each in answered]) / 1000
        ended_s = percentile(sorted(each.ended_s for each in answered), MOST) / MOST
        spent_s += max(run.seconds, ended_s - typical_s)
    return LoadStep(
        offered_per_s=offered_per_s,
        runs=len(runs),
        sent=len(outcomes),
        in_time=sum(_in_time(each, within_ms) for each in outcomes),
        answered=len(good),
        refused=refused,
        late=late,
        failed=len(outcomes) - len(good) - refused - late,
        bad_stretches=sum(bad) / len(bad) if bad else 0.0,
        backlog=_median([_backlog(run) for run in runs]),
        answered_per_s=len(good) / spent_s if good else 0.0,
        p50_ms=percentile(latencies, 0.5),
        p95_ms=percentile(latencies, 0.95),
        p99_ms=percentile(latencies, 0.99),
        parts_ms=parts,
        batch_rows=sum(sizes) / len(sizes) if sizes else None,
        sent_late_ms=percentile(sorted(1000 * (each.sent_s - each.due_s) for each in outcomes), 0.95),
        busy=max((run.busy for run in runs), default=0.0),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the ordered values do not exceed; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _in_time(answer: Outcome, within_ms: float) -> bool:
    return answer.status == 200 and answer.latency_ms <= within_ms


def _stretches(run: Run, count: int) -> list[list[Outcome]]:
    """Split a run into ``count`` equal periods; return the requests scheduled in each period."""
    edges_s = [run.seconds * number / count for number in range(count + 1)]
    return [[each for each in run.outcomes if low <= each.due_s < high] for low, high in pairwise(edges_s)]


def _backlog(run: Run) -> float:
    """Return the growth of the latency over a run (s per s), from medians, which short bursts do not move."""
    first, _, last = _stretches(run, 3)
    if not first or not last:
        return 0.0
    # The two medians are two thirds of the run apart.
    later_ms = _median([each.latency_ms for each in last]) - _median([each.latency_ms for each in first])
    return max(0.0, later_ms / 1000 / (run.seconds * 2 / 3))


def _median(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.5)
