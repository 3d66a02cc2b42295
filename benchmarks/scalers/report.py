"""What the benchmark of scaling concludes: laws at equal cost, tables, marks. Pure."""

from collections.abc import Mapping, Sequence
from statistics import mean

from benchmarks.report import Row, Spread, Target, number
from benchmarks.scalers.trials import DEFAULT_SHARE, ORACLE, PRESENT, RIVALS, SHOAL, STATIC, SWEPT, Figures, Trial

Results = Mapping[Trial, Figures]
Point = tuple[float, float]
"""Cost and violations."""
FEWER = 2.3
CONSTANT, STEP = "constant", "step"


def point(results: Results, law: str, setting: float, scenario: str | None = None) -> Point:
    """Return mean cost and violations of a law at a setting: over all scenarios, or of one."""
    chosen = [
        each
        for trial, each in results.items()
        if (trial.law, trial.setting) == (law, setting) and scenario in (None, trial.scenario)
    ]
    return mean(each.cost for each in chosen), mean(each.violations for each in chosen)


def curve(results: Results, law: str, scenario: str | None = None) -> list[Point]:
    """Return all that a law offers, by cost."""
    settings = sorted({trial.setting for trial in results if trial.law == law})
    return sorted([point(results, law, setting, scenario) for setting in settings])


def at_cost(points: Sequence[Point], cost: float) -> float:
    """Return the fewest violations for at most ``cost``: of the points, and of any mixture of two of them.

    Where even the cheapest point costs more, its violations: spending less would not make them fewer.
    """
    best = min([violations for each, violations in points if each <= cost], default=points[0][1])
    for cheap, few in points:
        for dear, fewer in points:
            if cheap <= cost < dear:
                best = min(best, few + (fewer - few) * (cost - cheap) / (dear - cheap))
    return best


def times_fewer(results: Results, rival: str, scenario: str | None = None, share: float = DEFAULT_SHARE) -> float:
    """Return how many times as many violations ``rival`` has as Shoal, at Shoal's replica-seconds."""
    cost, violations = point(results, SHOAL, share, scenario)
    return at_cost(curve(results, rival, scenario), cost) / max(violations, 1e-6)


def rows(results: Results, goodput: Mapping[str, Sequence[float]], cores: Sequence[float]) -> list[Row]:
    """Return what marks are judged by.

    Args:
        results: of all laws.
        goodput: with request forwarding, over what the replicas could do as one, by case and seed.
        cores: that the operator needs for a large fleet.
    """
    default = [
        (trial, each) for trial, each in results.items() if trial.law == SHOAL and trial.setting == DEFAULT_SHARE
    ]
    decided = [each.decided_s for trial, each in default if trial.scenario == STEP]
    constant = [float(each.reversals) for trial, each in default if trial.scenario == CONSTANT]
    ratios = {f"over {rival}": Spread.of([times_fewer(results, rival)]) for rival in (*RIVALS, STATIC)}
    return [
        Row("violations at equal replica-seconds", ratios),
        Row("a step to ten times the load", {"decision_s": Spread.of([60.0 if s is None else s for s in decided])}),
        Row("constant load", {"reversals": Spread.of(constant)}),
        *[Row(case, {"of_pooled": Spread.of(shares)}) for case, shares in goodput.items()],
        *([Row(LARGE, {"cores": Spread.of(cores)})] if cores else []),
    ]


LARGE = "1,000 services with 2,000 pods, read and decided every 2 s"
PINNED, SLOW = "8 pinned replicas at 0.9 load", "the same, one pod 1.5 x slower"
TARGETS = (
    *[Target("violations at equal replica-seconds", f"over {rival}", FEWER, at_least=True) for rival in RIVALS],
    Target("a step to ten times the load", "decision_s", 3.0, at_least=False),
    Target("constant load", "reversals", 0.0, at_least=False),
    Target(PINNED, "of_pooled", 0.99, at_least=True),
    Target(SLOW, "of_pooled", 0.97, at_least=True),
    Target(LARGE, "cores", 0.6, at_least=False),
)


def closing(found: Sequence[Row]) -> str:
    """Say how many marks are met."""
    met = [target for target in TARGETS if target.line(found).startswith("pass")]
    return f"{len(met)} of {len(TARGETS)} marks met"


def markdown(results: Results) -> list[str]:
    """Return a table: per scenario and law what is violated and paid for at the default, and times to recover."""
    scenarios = list(dict.fromkeys(trial.scenario for trial in results))
    lines = [
        "| scenario | law | violations | cost | reversals | recovery s | violations at Shoal's cost | times Shoal's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for scenario in scenarios:
        lines += [_line(results, scenario, law) for law in (*SWEPT, PRESENT, ORACLE)]
    return lines


def _line(results: Results, scenario: str, law: str) -> str:
    setting = DEFAULT_SHARE if law in SWEPT else 1.0
    chosen = [
        each
        for trial, each in results.items()
        if (trial.scenario, trial.law, trial.setting) == (scenario, law, setting)
    ]
    cells = [
        scenario if law == SHOAL else "",
        law,
        f"{mean(each.violations for each in chosen):.2%}",
        f"{mean(each.cost for each in chosen):.2f}",
        number(mean(each.reversals for each in chosen)),
        number(mean(each.recovery_s for each in chosen)),
    ]
    if law in RIVALS:
        cost, _ = point(results, SHOAL, DEFAULT_SHARE, scenario)
        at = at_cost(curve(results, law, scenario), cost)
        cells += [f"{at:.2%}", number(times_fewer(results, law, scenario))]
    else:
        cells += ["", ""]
    return "| " + " | ".join(cells) + " |"
