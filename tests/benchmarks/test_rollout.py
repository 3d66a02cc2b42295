"""Simulated candidates of a rollout."""

import pytest

from benchmarks.rollout.simulated import Case, run
from benchmarks.rollout.simulation import Candidate, Simulation


@pytest.mark.parametrize(
    ("candidate", "cause"),
    [
        (Candidate(), ""),
        (Candidate(wrong=0.05), "Disagreement"),
        (Candidate(slower=1.5), "Latency"),
        (Candidate(random_rows=0.05), ""),
    ],
)
def test_only_worse_candidates_are_rolled_back(candidate: Candidate, cause: str) -> None:
    assert run(Case(candidate, max_ratio="1.2", rows=3000), seed=1).cause == cause


def test_reports_grow() -> None:
    simulation = Simulation(Candidate(), 1)
    simulation.advance()
    before = simulation.stable
    simulation.advance()
    assert simulation.stable.shadowed_rows > before.shadowed_rows
    assert sum(each.batches for each in simulation.own.times) == simulation.stable.shadowed_batches
