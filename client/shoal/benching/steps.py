"""Steps of a rising load: what each rate measured.

The load is open: requests leave at random moments at a given rate, whatever the server answers, as they do when many
people ask. A closed loop (so many callers, each waiting for its answer) slows down with the server, and so hides the
queue that real callers would stand in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

ENOUGH: Final = 0.95
"""Share of the requests that must be answered in time."""
MOST: Final = 0.95
SLOWER: Final = 5.0
SLOWER_BY_MS: Final = 10.0
"""Without an objective an answer is in time up to as many times that of a request alone, or so much above it."""
BUSY: Final = 0.85
"""Share of one core from which the load generator has no time left to be on time."""
LATE_MS: Final = 5.0
LATE: Final = 0.25
"""How late, and what part of the latency, one in twenty requests may leave where the latency is to be the server's."""
STRETCHES: Final = 10
"""Equal parts of a run, by which a moment in which the machine was busy is told from a rate that is too high."""
PARTS: Final = ("queue", "batch", "runtime", "rest")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request.

    Attributes:
        due_s: when it was meant to leave, from the run's begin.
        sent_s: when it left.
        ended_s: when its answer was whole.
        status: HTTP status; 0 if no answer came.
        parts_ms: of ``Server-Timing``: queue, batch and runtime; empty if the server does not say.
        rows: of its batch, if the server says.
    """

    due_s: float
    sent_s: float
    ended_s: float
    status: int
    parts_ms: Mapping[str, float]
    rows: int | None = None

    @property
    def latency_ms(self) -> float:
        """From when it was due: a caller waits for a request that leaves late, too."""
        return 1000 * (self.ended_s - self.due_s)


@dataclass(frozen=True, slots=True)
class Run:
    """One run at a rate: its length, what came of each request, and the load generator's share of a core."""

    seconds: float
    answers: Sequence[Answer]
    busy: float


@dataclass(frozen=True, slots=True)
class Step:
    """What one rate measured in all its runs; rates are requests per second, times are of requests that were answered.

    Attributes:
        in_time: requests that were answered within the limit.
        bad_stretches: share of the tenths of the runs in which too few were.
        backlog: seconds by which answers grew later in each second; 0.1 is a tenth more than the server takes.
    """

    offered_per_s: float
    runs: int
    sent: int
    in_time: int
    answered: int
    refused: int
    late: int
    failed: int
    bad_stretches: float
    backlog: float
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
        """Whether the load generator, not the server, had no time left."""
        return self.busy > BUSY or self.sent_late_ms > max(LATE_MS, LATE * self.p95_ms)

    @property
    def in_time_share(self) -> float:
        """Share of the requests that were answered in time."""
        return self.in_time / self.sent if self.sent else 0.0


def limit_ms(alone_ms: float, objective_ms: float | None = None) -> float:
    """Return how late an answer may be: as the server means to be, else clearly more than a request alone takes.

    A server does not hold to an objective that even a request alone misses.
    """
    if objective_ms is not None and objective_ms > alone_ms:
        return objective_ms
    return max(SLOWER * alone_ms, alone_ms + SLOWER_BY_MS)


def summarize(offered_per_s: float, runs: Sequence[Run], within_ms: float) -> Step:
    """Return what the ``runs`` at a rate measured; an answer within ``within_ms`` is in time."""
    answers = [each for run in runs for each in run.answers]
    good = [each for each in answers if each.status == 200]
    latencies = sorted(each.latency_ms for each in good)
    refused = sum(each.status in (429, 503) for each in answers)
    late = sum(each.status in (0, 408, 504) for each in answers)
    sizes = [each.rows for each in good if each.rows is not None]
    bad = [_bad(stretch, within_ms) for run in runs for stretch in _stretches(run, STRETCHES) if stretch]
    return Step(
        offered_per_s=offered_per_s,
        runs=len(runs),
        sent=len(answers),
        in_time=sum(_in_time(each, within_ms) for each in answers),
        answered=len(good),
        refused=refused,
        late=late,
        failed=len(answers) - len(good) - refused - late,
        bad_stretches=sum(bad) / len(bad) if bad else 0.0,
        backlog=_median([_backlog(run) for run in runs]),
        answered_per_s=len(good) / sum(map(_spent_s, runs)) if good else 0.0,
        p50_ms=percentile(latencies, 0.5),
        p95_ms=percentile(latencies, 0.95),
        p99_ms=percentile(latencies, 0.99),
        parts_ms=_parts(good),
        batch_rows=sum(sizes) / len(sizes) if sizes else None,
        sent_late_ms=percentile(sorted(1000 * (each.sent_s - each.due_s) for each in answers), 0.95),
        busy=max((run.busy for run in runs), default=0.0),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the ordered ones do not exceed; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _in_time(answer: Answer, within_ms: float) -> bool:
    return answer.status == 200 and answer.latency_ms <= within_ms


def _bad(stretch: Sequence[Answer], within_ms: float) -> bool:
    return sum(_in_time(each, within_ms) for each in stretch) < ENOUGH * len(stretch)


def _stretches(run: Run, count: int) -> list[list[Answer]]:
    """Return the answers by the part of the run in which they were due."""
    edges_s = [run.seconds * number / count for number in range(count + 1)]
    return [[each for each in run.answers if low <= each.due_s < high] for low, high in pairwise(edges_s)]


def _backlog(run: Run) -> float:
    """Compare the last third with the first by their medians, which one bad moment does not move."""
    first, _, last = _stretches(run, 3)
    if not first or not last:
        return 0.0
    later_ms = _median([each.latency_ms for each in last]) - _median([each.latency_ms for each in first])
    return max(0.0, later_ms / 1000 / (run.seconds * 2 / 3))


def _median(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.5)


def _spent_s(run: Run) -> float:
    """Return how long a run took to be answered: of nearly all, in proportion, since one straggler says nothing."""
    good = [each for each in run.answers if each.status == 200]
    typical_s = _median([each.latency_ms for each in good]) / 1000
    return max(run.seconds, percentile(sorted(each.ended_s for each in good), MOST) / MOST - typical_s)


def _parts(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the mean of each part; the rest is the way there and back, HTTP, and the callers' own machine."""
    told = [each for each in answers if each.parts_ms]
    if not told:
        return {}
    parts = {name: sum(each.parts_ms.get(name, 0.0) for each in told) / len(told) for name in PARTS[:3]}
    mean_ms = sum(each.latency_ms for each in told) / len(told)
    return {**parts, "rest": max(0.0, mean_ms - sum(parts.values()))}
