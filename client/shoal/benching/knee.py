"""Where the server bends: what a step tells, which rate is tried next and for how long, and how sure the knee is.

The knee is the highest rate at which 95 in 100 requests are answered in time. A step says so only with enough requests,
and says the contrary only if they were late throughout: a few late ones in a moment are the machine's, not the rate's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import Final

from shoal.benching.steps import BUSY, ENOUGH, Step

MIN_REQUESTS: Final = 50
"""Of fewer, one or two late ones decide whether 95 in 100 were in time."""
PLAINLY_LATE: Final = 0.5
PLAINLY_LATE_REQUESTS: Final = 10
"""So many requests tell that a rate is too high if so few of them are in time."""
MAX_BAD_STRETCHES: Final = 1 / 3
MAX_BACKLOG: Final = 0.1
GROWTH: Final = 2.0
CLOSE_ENOUGH: Final = 1.15
"""How far the last rate that held and the first that did not may be apart where the knee counts as found."""
MAX_RUNS: Final = 3
MAX_RUN_SHARE: Final = 1 / 3
"""Share of the whole time that one run may take."""


class Verdict(StrEnum):
    """What a step tells of its rate; the last three tell nothing of the server."""

    HELD = "held"
    BENT = "bent"
    FEW = "too few"
    NOISY = "noisy"
    GENERATOR = "generator"


def judge(step: Step) -> Verdict:
    """Return whether the server kept up, or why that cannot be said."""
    plainly = step.sent >= PLAINLY_LATE_REQUESTS and step.in_time_share < PLAINLY_LATE
    if step.in_time_share >= ENOUGH and (step.backlog <= MAX_BACKLOG or step.generator_bound):
        return Verdict.HELD if step.sent >= MIN_REQUESTS else Verdict.FEW
    if step.generator_bound:
        return Verdict.GENERATOR
    if step.sent < MIN_REQUESTS:
        return Verdict.BENT if plainly else Verdict.FEW
    # A machine can be busy for as long as a run takes; twice at one rate is not chance.
    throughout = step.bad_stretches > MAX_BAD_STRETCHES and step.runs > 1
    return Verdict.BENT if plainly or throughout or step.backlog > MAX_BACKLOG else Verdict.NOISY


@dataclass(frozen=True, slots=True)
class Knee:
    """Between which rates the knee lies.

    Attributes:
        held: the highest rate that held, below all that bent; None if none did.
        bent: the lowest that bent; None if none did.
        unsure: rates between the two, or above all that held, that tell nothing.
    """

    held: Step | None
    bent: Step | None
    unsure: tuple[Step, ...] = ()

    @property
    def found(self) -> bool:
        """Whether the two are so close that the knee is one figure."""
        return bool(self.held and self.bent and _close(self.held, self.bent))


def find(steps: Sequence[Step]) -> Knee:
    """Return where the knee is, as far as the ``steps`` tell."""
    ordered = sorted(steps, key=lambda each: each.offered_per_s)
    bent = next((step for step in ordered if judge(step) is Verdict.BENT), None)
    below = [step for step in ordered if bent is None or step.offered_per_s < bent.offered_per_s]
    held = next((step for step in reversed(below) if judge(step) is Verdict.HELD), None)
    above = [step for step in below if held is None or step.offered_per_s > held.offered_per_s]
    return Knee(held, bent, tuple(above))


def next_rate(steps: Sequence[Step], alone_ms: float) -> float | None:
    """Return the rate to try next (requests/s), or once more; None when no other would tell more.

    From half of what one request at a time makes, twice as much each time until the server bends, then the middle
    between what bent and the highest that did not; at the end both are tried once more. ``steps`` are in the order in
    which their rates were first tried.
    """
    if not steps:
        return 500 / max(alone_ms, 0.1)
    knee = find(steps)
    if noisy := [step for step in knee.unsure if judge(step) in (Verdict.NOISY, Verdict.GENERATOR) and _again(step)]:
        return noisy[0].offered_per_s
    top = knee.unsure[-1] if knee.unsure else knee.held
    if knee.bent is None:
        ended = top is None or top.busy > BUSY or judge(top) is Verdict.GENERATOR
        return None if top is None or ended else GROWTH * top.offered_per_s
    if top is None:
        # A quarter; where requests would hardly meet any more, a lower rate changes nothing.
        return knee.bent.offered_per_s / 4 if knee.bent.offered_per_s * alone_ms > 40 else None
    if not _close(top, knee.bent):
        return sqrt(top.offered_per_s * knee.bent.offered_per_s)
    few = [step for step in reversed(knee.unsure) if judge(step) is Verdict.FEW and _again(step)]
    once = [step for step in (knee.bent, knee.held) if step and step.runs < 2]
    return next((step.offered_per_s for step in (*few, *once)), None)


def run_s(rate_per_s: float, *, step_s: float, whole_s: float) -> float:
    """Return how long to run at a rate: until there are enough requests, but no longer than a third of all the time."""
    return min(max(step_s, MIN_REQUESTS / rate_per_s), max(step_s, MAX_RUN_SHARE * whole_s))


def _again(step: Step) -> bool:
    """Return whether another run may tell more: not where the load generator has no time left at all."""
    return step.runs < MAX_RUNS and step.busy <= BUSY


def _close(low: Step, high: Step) -> bool:
    return high.offered_per_s <= CLOSE_ENOUGH * low.offered_per_s
