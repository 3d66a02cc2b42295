"""Find the knee of a load test: the highest rate answered in time.

In time means that 95 % of the requests get a response within the limit of latency.

A rate is *held* if the server kept up, with enough requests sent for a verdict. A rate is *bent* (too high) if
responses were late throughout the run: a short burst of late responses is noise of the machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import Final

from shoal.benching.steps import BUSY, ENOUGH, LoadStep

MIN_REQUESTS: Final = 50
"""Requests for a verdict; with fewer, one or two late responses decide whether 95 % are in time."""
PLAINLY_LATE: Final = 0.5
"""In-time share below which `PLAINLY_LATE_REQUESTS` requests are enough to call a rate too high."""
PLAINLY_LATE_REQUESTS: Final = 10
MAX_BAD_STRETCHES: Final = 1 / 3
"""Share of a run's tenths that may be late in a run that is merely noisy."""
MAX_BACKLOG: Final = 0.1
"""Growth of the latency, in seconds per second, above which the queue grows."""
GROWTH: Final = 2.0
"""Factor between rates while the server keeps up."""
CLOSE_ENOUGH: Final = 1.15
"""Ratio of the bent rate to the held rate up to which the knee counts as found."""
MAX_RUNS: Final = 3
"""Runs at one rate."""
MAX_RUN_SHARE: Final = 1 / 3
"""Share of the whole time that one run may take."""


class StepVerdict(StrEnum):
    """Verdict on one request rate of a load test.

    The server kept up (``HELD``), or the rate is too high (``BENT``). Any other verdict is inconclusive: too few
    requests, a busy machine, or a busy load generator.
    """

    HELD = "held"
    BENT = "bent"
    FEW = "too few"
    NOISY = "noisy"
    GENERATOR = "generator"


def judge(step: LoadStep) -> StepVerdict:
    """Return the verdict on a request rate."""
    # A rate far above the capacity is obvious from few requests.
    plainly = step.sent >= PLAINLY_LATE_REQUESTS and step.in_time_share < PLAINLY_LATE
    if step.in_time_share >= ENOUGH and (step.backlog <= MAX_BACKLOG or step.generator_bound):
        return StepVerdict.HELD if step.sent >= MIN_REQUESTS else StepVerdict.FEW
    # From here on responses were late: by the load generator, by noise, or by the server.
    if step.generator_bound:
        return StepVerdict.GENERATOR
    if step.sent < MIN_REQUESTS:
        return StepVerdict.BENT if plainly else StepVerdict.FEW
    # A machine can be busy for the length of one run; twice at the same rate is not chance.
    throughout = step.bad_stretches > MAX_BAD_STRETCHES and step.runs > 1
    return StepVerdict.BENT if plainly or throughout or step.backlog > MAX_BACKLOG else StepVerdict.NOISY


@dataclass(frozen=True, slots=True)
class Knee:
    """Bounds of the knee.

    The knee is the highest rate at which requests meet the latency objective.
    """

    held: LoadStep | None
    """The highest rate that held below all bent ones; None if none held."""
    bent: LoadStep | None
    """The lowest rate that bent; None if none bent."""
    unsure: tuple[LoadStep, ...] = ()
    """Inconclusive rates between the two, or above all that held."""

    @property
    def found(self) -> bool:
        """Whether both bounds exist and are close enough to report one rate."""
        return bool(self.held and self.bent and _close(self.held, self.bent))


def find(steps: Sequence[LoadStep]) -> Knee:
    """Return the bounds of the knee."""
    ordered = sorted(steps, key=lambda each: each.offered_per_s)
    bent = next((step for step in ordered if judge(step) is StepVerdict.BENT), None)
    below = [step for step in ordered if bent is None or step.offered_per_s < bent.offered_per_s]
    held = next((step for step in reversed(below) if judge(step) is StepVerdict.HELD), None)
    # Inconclusive by construction: between the two, nothing held and nothing bent.
    above = [step for step in below if held is None or step.offered_per_s > held.offered_per_s]
    return Knee(held, bent, tuple(above))


def next_rate(steps: Sequence[LoadStep], alone_ms: float) -> float | None:
    """Return the next rate to measure (requests/s), or None at the end.

    The first rate is half that of requests sent one at a time. Rates double until one is too high. Then the search
    bisects between the highest rate held and the lowest rate too high, and repeats both. ``steps`` are in the order of
    their first measurement.
    """
    if not steps:
        return 500 / max(alone_ms, 0.1)
    knee = find(steps)
    # Noise first: a repeated run settles it cheaply.
    if noisy := [
        step for step in knee.unsure if judge(step) in (StepVerdict.NOISY, StepVerdict.GENERATOR) and _again(step)
    ]:
        return noisy[0].offered_per_s
    top = knee.unsure[-1] if knee.unsure else knee.held
    if knee.bent is None:
        # Still rising, unless the load generator is exhausted.
        ended = top is None or top.busy > BUSY or judge(top) is StepVerdict.GENERATOR
        return None if top is None or ended else GROWTH * top.offered_per_s
    if top is None:
        # The first rate bent: try a quarter of it. Where requests hardly overlap, a lower rate changes nothing.
        return knee.bent.offered_per_s / 4 if knee.bent.offered_per_s * alone_ms > 40 else None
    if not _close(top, knee.bent):
        return sqrt(top.offered_per_s * knee.bent.offered_per_s)
    # The bracket is narrow: complete and repeat the rates that decide it.
    few = [step for step in reversed(knee.unsure) if judge(step) is StepVerdict.FEW and _again(step)]
    once = [step for step in (knee.bent, knee.held) if step and step.runs < 2]
    return next((step.offered_per_s for step in (*few, *once)), None)


def run_s(rate_per_s: float, *, step_s: float, whole_s: float) -> float:
    """Return the duration of a run (s), long enough for a verdict.

    The minimum is ``step_s``. The maximum is a third of ``whole_s``, or ``step_s`` if that is longer.
    """
    return min(max(step_s, MIN_REQUESTS / rate_per_s), max(step_s, MAX_RUN_SHARE * whole_s))


def _again(step: LoadStep) -> bool:
    """Return whether to repeat a step: it has fewer than `MAX_RUNS` runs, and the load generator has spare CPU."""
    return step.runs < MAX_RUNS and step.busy <= BUSY


def _close(low: LoadStep, high: LoadStep) -> bool:
    return high.offered_per_s <= CLOSE_ENOUGH * low.offered_per_s
