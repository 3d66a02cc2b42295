"""The simulated half: how soon candidates are rolled back, and how often equal ones are.

The verdict is the operator's own code, computed every two seconds of simulated time until it fails or the step passes.
"""

import multiprocessing
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tqdm import tqdm

from benchmarks.report import Row, Target, make_row
from benchmarks.rollout.simulation import Candidate, Simulation
from shoal_operator.rollout.verdict import StepProgress, VerdictState, judge
from shoal_schema.resource.comparison import CompareSpec, LatencyToleranceSpec
from shoal_schema.resource.rollout import RolloutStep

ROWS = 10_000
TRIALS = 20


@dataclass(frozen=True, slots=True)
class Case:
    """Trials with candidates of one kind."""

    candidate: Candidate
    max_ratio: str = "1.05"
    rows: int = ROWS
    """Rows of the step."""
    trials: int = TRIALS


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one trial ended."""

    cause: str
    """Why the candidate was rolled back; empty if the step passed."""
    rows: int
    """Rows that the candidate had run."""
    verdicts: int


WRONG, SLOWER, EQUAL = "wrong in 1 of 200 rows", "10 % slower above 16 rows", "equal"
BUSY: Mapping[str, float] = {"repeated": 0.1, "suspected": 0.3}
"""Shares of shadowed batches that a stable pod repeats at 0.8 of its capacity, while 10 % of batches are shadowed."""
CASES: Mapping[str, Case] = {
    WRONG: Case(Candidate(wrong=0.005)),
    SLOWER: Case(Candidate(slower=1.10)),
    EQUAL: Case(Candidate()),
    "wrong in 1 of 200 rows, 200 trials": Case(Candidate(wrong=0.005), trials=200),
    "wrong in 1 of 200 rows, busy": Case(Candidate(wrong=0.005, **BUSY), trials=200),
    "wrong in 1 of 50 rows, busy": Case(Candidate(wrong=0.02, **BUSY), trials=200),
    "10 % slower above 16 rows, 200 trials": Case(Candidate(slower=1.10), trials=200),
    "10 % slower above 16 rows, machines differ by 1 %": Case(Candidate(slower=1.10, machines=0.01), trials=200),
    "equal, machines differ by 1 %": Case(Candidate(machines=0.01), trials=500),
    "equal, 500 trials": Case(Candidate(), trials=500),
    "equal, 100,000 rows": Case(Candidate(), rows=100_000, trials=50),
    "equal, 2 % of rows random": Case(Candidate(random_rows=0.02), trials=500),
    "equal, 2 % of rows random, busy": Case(Candidate(random_rows=0.02, **BUSY), trials=500),
    "equal, 1 in 500 batches fails": Case(Candidate(failing=0.002), trials=500),
}
TARGETS = (
    Target(WRONG, "rolled_back", TRIALS, at_least=True),
    Target(WRONG, "max_rows", ROWS, at_least=False),
    Target(SLOWER, "rolled_back", TRIALS, at_least=True),
    Target(SLOWER, "max_rows", ROWS, at_least=False),
    Target(EQUAL, "rolled_back", 0, at_least=False),
)


def run(case: Case, seed: int) -> Outcome:
    """Judge one candidate until it fails or its step passes."""
    simulation = Simulation(case.candidate, seed)
    compare = CompareSpec(latency=LatencyToleranceSpec(case.max_ratio))
    step, verdicts = RolloutStep(shadow=10, rows=case.rows), 0
    while True:
        simulation.advance()
        progress = StepProgress(step, 0, simulation.now_s)
        verdict = judge(compare, simulation.stable, simulation.own, progress)
        verdicts += 1
        if verdict.state is not VerdictState.CONTINUE:
            return Outcome(str(verdict.cause or ""), int(verdict.figures["rows"]), verdicts)


def measure(processes: int, *, quick: bool) -> tuple[list[Row], dict[str, Counter[str]]]:
    """Run all cases.

    Returns:
        Figures by case, and by case the number of trials by cause.
    """
    jobs = [(name, seed) for name, case in CASES.items() for seed in range(TRIALS if quick else case.trials)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        outcomes = list(tqdm(pool.imap(_run, jobs, chunksize=4), total=len(jobs), unit="trial", disable=None))
    found: dict[str, list[Outcome]] = {name: [] for name in CASES}
    for (name, _), outcome in zip(jobs, outcomes, strict=True):
        found[name].append(outcome)
    rows = [make_row(name, [_figures(each)]) for name, each in found.items()]
    return rows, {name: Counter(outcome.cause for outcome in each if outcome.cause) for name, each in found.items()}


def _run(job: tuple[str, int]) -> Outcome:
    name, seed = job
    return run(CASES[name], seed)


def _figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return trials, those rolled back, and the rows and verdicts until then."""
    failed = [outcome for outcome in outcomes if outcome.cause]
    figures: dict[str, float] = {"trials": len(outcomes), "rolled_back": len(failed)}
    rows = [outcome.rows for outcome in failed]
    if rows:
        figures |= {"median_rows": median(rows), "max_rows": max(rows)}
    return {**figures, "median_verdicts": median(outcome.verdicts for outcome in outcomes)}
