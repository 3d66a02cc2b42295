"""What pods say of their latency objective, so remembered that one doubtful scrape changes little.

A no counts at once, and for a while after the last one: a pod at the limit says yes and no in turn.
A pod that cannot be read keeps its last answer until that is stale.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

FRESH_S = 30.0
"""What was said longer ago than this is not known any more."""
HOLD_S = 120.0
"""A pod that says yes is believed this long after its last no."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a pod said, in monotonic seconds.

    Args:
        heard_s: when it last said anything.
        refused_s: when it last said no; None when it never did.
    """

    heard_s: float
    refused_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reports:
    """What the ready pods of one service said.

    Args:
        begun_s: when they were first asked (monotonic s).
        answers: by uid, of the pods that said something that is still fresh.
    """

    begun_s: float
    answers: Mapping[str, Answer] = field(default_factory=dict)


def record(reports: Reports, said: Mapping[str, bool | None], now_s: float) -> Reports:
    """Record what pods said.

    Args:
        reports: what the last call returned.
        said: by uid, whether each ready pod can meet its objective; None where it did not say.
        now_s: monotonic time (s).
    """
    answers = {uid: _answer(reports.answers.get(uid), now_s, yes=yes) for uid, yes in said.items()}
    return Reports(reports.begun_s, {uid: answer for uid, answer in answers.items() if answer})


def attainable(reports: Reports, now_s: float) -> dict[str, bool] | None:
    """Return by uid whether each pod can meet its objective, or None when it is too early to tell."""
    if not reports.answers and now_s - reports.begun_s < FRESH_S:
        return None
    return {
        uid: answer.refused_s is None or now_s - answer.refused_s >= HOLD_S for uid, answer in reports.answers.items()
    }


def _answer(last: Answer | None, now_s: float, *, yes: bool | None) -> Answer | None:
    if yes is None:
        return last if last and now_s - last.heard_s < FRESH_S else None
    if yes:
        return Answer(now_s, last.refused_s if last else None)
    return Answer(now_s, now_s)
