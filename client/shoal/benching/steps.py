"""Steps of a rising load: what each measured, which rate is tried next, and where the server bends.

The load is open: requests leave at random moments at a given rate, whatever the server answers, as they do when many
people ask. A closed loop (so many callers, each waiting for its answer) slows down with the server, and so hides the
queue that real callers would stand in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

GROWTH: Final = 2.0
CLOSE_ENOUGH: Final = 1.15
"""How far the last rate that held and the first that did not may be apart."""
LEAST_GOOD: Final = 0.9
"""Share of the offered requests that must be answered in time; chance arrivals alone take a few percent of a step."""
MOST: Final = 0.95
SLOWER: Final = 5.0
SLOWER_BY_MS: Final = 10.0
"""Latency has bent when it is both as many times and so much above that of a request alone."""
BUSY: Final = 0.85
"""Share of one core from which the load generator has no time left to be on time."""
PARTS: Final = ("queue", "batch", "runtime", "rest")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request.

    Attributes:
        due_s: when it was meant to leave, from the step's begin.
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
class Step:
    """What one rate measured; rates are requests per second, times are of requests that were answered."""

    offered_per_s: float
    sent: int
    answered: int
    refused: int
    late: int
    failed: int
    goodput_per_s: float
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
        return self.busy > BUSY or self.sent_late_ms > max(5.0, self.p95_ms / 2)


def summarize(offered_per_s: float, seconds: float, answers: Sequence[Answer], busy: float) -> Step:
    """Return what ``seconds`` at a rate measured; ``busy`` is the load generator's share of one core."""
    good = [each for each in answers if each.status == 200]
    latencies = sorted(each.latency_ms for each in good)
    typical_s = percentile(latencies, 0.5) / 1000
    # One straggler says nothing about the rate: the time is that of nearly all, in proportion.
    spent_s = percentile(sorted(each.ended_s for each in good), MOST) / MOST - typical_s
    refused = sum(each.status in (429, 503) for each in answers)
    late = sum(each.status in (0, 408, 504) for each in answers)
    sizes = [each.rows for each in good if each.rows is not None]
    return Step(
        offered_per_s=len(answers) / seconds if answers else offered_per_s,
        sent=len(answers),
        answered=len(good),
        refused=refused,
        late=late,
        failed=len(answers) - len(good) - refused - late,
        goodput_per_s=len(good) / max(seconds, spent_s),
        p50_ms=percentile(latencies, 0.5),
        p95_ms=percentile(latencies, 0.95),
        p99_ms=percentile(latencies, 0.99),
        parts_ms=_parts(good),
        batch_rows=sum(sizes) / len(sizes) if sizes else None,
        sent_late_ms=percentile(sorted(1000 * (each.sent_s - each.due_s) for each in answers), 0.95),
        busy=busy,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the ordered ones do not exceed; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def bent(step: Step, alone_ms: float, objective_ms: float | None = None) -> bool:
    """Say whether a server no longer keeps up: answers are missing, or are much later than alone."""
    if step.answered < LEAST_GOOD * step.sent or step.goodput_per_s < LEAST_GOOD * step.offered_per_s:
        return True
    if objective_ms is not None:
        return step.p95_ms > objective_ms
    return step.p95_ms > max(SLOWER * alone_ms, alone_ms + SLOWER_BY_MS)


def next_rate(steps: Sequence[Step], alone_ms: float, objective_ms: float | None = None) -> float | None:
    """Return the rate to try next (requests/s), None when the knee is known well enough.

    Twice as much each time until the server bends, then the middle between what held and what did not.
    """
    if not steps:
        return max(1.0, 500 / max(alone_ms, 0.1))
    held = knee(steps, alone_ms, objective_ms)
    over = [step.offered_per_s for step in steps if bent(step, alone_ms, objective_ms)]
    if not over:
        return None if steps[-1].generator_bound else GROWTH * steps[-1].offered_per_s
    if held is None:
        lower = min(over) / 4
        return lower if lower * alone_ms > 1 and min(over) > 1 else None
    above = [rate for rate in over if rate > held.offered_per_s]
    if not above or min(above) < CLOSE_ENOUGH * held.offered_per_s:
        return None
    return sqrt(held.offered_per_s * min(above))


def knee(steps: Iterable[Step], alone_ms: float, objective_ms: float | None = None) -> Step | None:
    """Return the highest rate that the server kept up with, below any that it did not; None if there is none."""
    held = None
    for step in sorted(steps, key=lambda each: each.offered_per_s):
        if bent(step, alone_ms, objective_ms):
            break
        held = step
    return held


def _parts(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the mean of each part; the rest is the way there and back, HTTP, and the callers' own machine."""
    told = [each for each in answers if each.parts_ms]
    if not told:
        return {}
    parts = {name: sum(each.parts_ms.get(name, 0.0) for each in told) / len(told) for name in PARTS[:3]}
    mean_ms = sum(each.latency_ms for each in told) / len(told)
    return {**parts, "rest": max(0.0, mean_ms - sum(parts.values()))}
