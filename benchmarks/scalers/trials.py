"""Every law on every scenario, at several degrees of aggressiveness, and what is made of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.scalers.cluster import Course, foreseen, needed, run
from benchmarks.scalers.ours import Shoal
from benchmarks.scalers.readings import Law, Service
from benchmarks.scalers.rivals import HorizontalPodAutoscaler, Keda, Knative, Plan, RayServe, Static
from benchmarks.scalers.scenarios import WARM_S, Scenario, by_name

SHOAL, ORACLE, PRESENT, STATIC = "Shoal", "oracle", "knows the present", "static"
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
"""Targets, in shares of the rows that a replica at its capacity holds: low ones keep replicas in reserve."""
DEFAULT_SHARE = 0.8
HOLD_S = 300
"""What the law that knows the present keeps: the same as Shoal and the HPA."""
BAD = 0.01
"""Share of violations above which a second is a bad one."""
CALM_S = 10
"""A service that has been without bad seconds for so long has recovered."""

SWEPT: Mapping[str, Callable[[Service, float], Law]] = {
    SHOAL: Shoal,
    "Knative": Knative,
    "HPA": HorizontalPodAutoscaler,
    "KEDA": Keda,
    "Ray Serve": RayServe,
}
RIVALS = tuple(name for name in SWEPT if name != SHOAL)


@dataclass(frozen=True, slots=True)
class Trial:
    """A law at a setting on a scenario: a share of a replica's rows, or a number of replicas, or nothing."""

    scenario: str
    law: str
    setting: float
    seed: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of it.

    Args:
        violations: share of rows refused, late or lost.
        cost: replica-seconds over those of the replicas that each second needed.
        reversals: how often decisions turned from more to fewer or back.
        recovery_s: the longest time with violations.
        decided_s: from the step until more replicas were wanted; None without a step, or a decision.
    """

    violations: float
    cost: float
    reversals: int
    recovery_s: float
    decided_s: float | None


def trials(seeds: int, shares: Sequence[float] = SHARES) -> list[Trial]:
    """Return all trials."""
    settings: dict[str, Sequence[float]] = dict.fromkeys(SWEPT, shares) | {
        STATIC: [float(count) for count in range(1, Service().maximum + 1, 2 if shares is SHARES else 4)],
        ORACLE: (1.0,),
        PRESENT: (1.0,),
    }
    return [
        Trial(scenario, law, setting, seed)
        for scenario in by_name()
        for law, each in settings.items()
        for setting in each
        for seed in range(1, seeds + 1)
    ]


def measure(trial: Trial, service: Service | None = None) -> Figures:
    """Run a trial."""
    scenario = by_name()[trial.scenario]
    course, need = course_of(trial, scenario, service or Service())
    return figures(course, need, scenario)


def course_of(trial: Trial, scenario: Scenario, service: Service) -> tuple[Course, Sequence[int]]:
    """Return what happened, and how many replicas each second needed."""
    counts = scenario.counts(trial.seed).tolist()
    need = needed(service, counts)
    law, replicas = _law(trial, service, need)
    return run(law, service, counts, replicas), need


def _law(trial: Trial, service: Service, need: Sequence[int]) -> tuple[Law, int]:
    """Return the law, and how many replicas it begins with."""
    if trial.law == STATIC:
        return Static(int(trial.setting)), int(trial.setting)
    if trial.law == ORACLE:
        plan = foreseen(service, need)
        return Plan(plan), plan[0]
    if trial.law == PRESENT:
        return Plan([max(need[max(0, second - HOLD_S) : second + 1]) for second in range(len(need))]), max(need[:10])
    return SWEPT[trial.law](service, trial.setting * service.rows), max(need[:10])


def figures(course: Course, need: Sequence[int], scenario: Scenario) -> Figures:
    """Return what counts of a course: that of the scenario itself, without what was before it."""
    offered, violated = course.offered[WARM_S:], course.violated[WARM_S:]
    decided = [course.replicas[WARM_S], *[replicas for at_s, replicas in course.decided if at_s > WARM_S]]
    ways = [later > earlier for earlier, later in pairwise(decided)]
    return Figures(
        sum(violated) / sum(offered),
        sum(course.replicas[WARM_S:]) / sum(need[WARM_S:]),
        sum([later != earlier for earlier, later in pairwise(ways)]),
        _longest_bad_s(offered, violated),
        _decided_s(course, scenario),
    )


def _longest_bad_s(offered: Sequence[float], violated: Sequence[float]) -> float:
    longest = begun = last_bad = -CALM_S - 1
    longest = 0
    for second, (rows, bad) in enumerate(zip(offered, violated, strict=True)):
        if bad > BAD * rows:
            begun = second if second - last_bad > CALM_S else begun
            last_bad = second
            longest = max(longest, last_bad - begun + 1)
    return longest


def _decided_s(course: Course, scenario: Scenario) -> float | None:
    if scenario.step_s is None:
        return None
    step_s = WARM_S + scenario.step_s
    before = [replicas for at_s, replicas in course.decided if at_s < step_s]
    for at_s, replicas in course.decided:
        if at_s >= step_s and (not before or replicas > before[-1]):
            return at_s - step_s
    return None
