"""Simulated candidates of a rollout, and what is counted of real ones."""

import pytest

from benchmarks.rollout.canary import Change, by_step
from benchmarks.rollout.load import Sample, candidate_share, p99_s, poisson
from benchmarks.rollout.replicas import CANDIDATE, STABLE, Cost
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


def sample(number: int, at_s: float, revision: str) -> Sample:
    return Sample(number, at_s, at_s + 0.01, revision)


def test_requests_are_counted_for_the_step_in_which_they_were_sent_and_served() -> None:
    samples = [sample(1, 0.5, STABLE), sample(2, 1.5, CANDIDATE), sample(3, 2.98, STABLE), sample(4, 3.5, CANDIDATE)]
    steps = dict(by_step([Change(25, 1.0), Change(50, 3.0)], samples))
    # The third one was served just before the next plan was accepted.
    assert {each.weight: [one.number for one in inside] for each, inside in steps.items()} == {25: [2], 50: [4]}
    assert candidate_share(samples) == 0.5


def test_arrivals_have_their_rate_and_are_the_same_for_each_seed() -> None:
    times = poisson(100.0, 20.0, seed=1)
    assert times == poisson(100.0, 20.0, seed=1) == sorted(times)
    assert len(times) == pytest.approx(2000, rel=0.1)
    assert times[-1] < 20.0


def test_the_99th_percentile_is_that_of_the_wanted_time() -> None:
    assert p99_s([Sample(each, 0.0, each / 100, STABLE) for each in range(101)]) == 0.99


def test_a_full_batch_bounds_the_rows_per_second() -> None:
    assert Cost(base_ms=8, per_row_ms=2, max_rows=8).rows_per_s == pytest.approx(8 / 0.024)
