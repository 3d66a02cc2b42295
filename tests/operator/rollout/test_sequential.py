"""Sequential tests: their error rates at the limit of a tolerance, however often they are repeated."""

import random
from collections.abc import Callable
from math import inf, log

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal_operator.rollout.sequential import (
    Events,
    Times,
    evidence_of_excess,
    evidence_of_share,
    evidence_of_slowdown,
)

RATE = 0.05
TRIALS = 300
# Rejections of which more have a probability below 0.002 if each trial rejects with `RATE`.
MAX_REJECTIONS = 27


def rejections(trial: Callable[[random.Random], bool]) -> int:
    """Return how many of `TRIALS` trials, with seeds from 0, reject."""
    return sum(trial(random.Random(seed)) for seed in range(TRIALS))


def bernoulli(generator: random.Random, share: float, rows: int) -> int:
    return sum(generator.random() < share for _ in range(rows))


@pytest.mark.parametrize(("noise", "repeated"), [(0.0, 20), (0.05, 20), (0.05, 2)])
def test_a_share_at_its_limit_is_rejected_at_most_at_the_stated_rate(noise: float, repeated: int) -> None:
    def trial(generator: random.Random) -> bool:
        events = repeats = 0
        for looks in range(1, 60):
            events += bernoulli(generator, 0.02 + noise, 20)
            repeats += bernoulli(generator, noise, repeated)
            evidence = evidence_of_excess(Events(20 * looks, events), Events(repeated * looks, repeats), 0.02)
            if evidence >= log(1 / RATE):
                return True
        return False

    assert rejections(trial) <= MAX_REJECTIONS


def test_batches_that_fail_as_a_whole_are_rejected_at_most_at_the_stated_rate() -> None:
    def trial(generator: random.Random) -> bool:
        rows = failed = 0
        for _ in range(400):
            rows, failed = rows + 32, failed + 32 * (generator.random() < 0.01)
            if evidence_of_share(Events.of_batches(rows, failed, 32 * failed), 0.01) >= log(1 / RATE):
                return True
        return False

    assert rejections(trial) <= MAX_REJECTIONS


def sample(generator: random.Random, spread: float, tail: float) -> float:
    """Return the logarithm of a time, which is log-normal except for a share of slow ones."""
    return generator.gauss(0.0, spread) + (generator.expovariate(3.0) if generator.random() < tail else 0.0)


def times(logs: list[float]) -> Times:
    mean = sum(logs) / len(logs)
    return Times(len(logs), mean, sum((each - mean) ** 2 for each in logs))


@pytest.mark.parametrize("tail", [0.0, 0.02])
def test_a_ratio_at_its_limit_is_rejected_at_most_at_the_stated_rate(tail: float) -> None:
    def trial(generator: random.Random) -> bool:
        stable: list[float] = []
        candidate: list[float] = []
        for _ in range(25):
            stable += [sample(generator, 0.1, tail) for _ in range(10)]
            candidate += [0.05 + sample(generator, 0.1, tail) for _ in range(5)]
            if evidence_of_slowdown(times(candidate), times(stable), 0.05) >= log(1 / RATE):
                return True
        return False

    assert rejections(trial) <= MAX_REJECTIONS


def test_excess_is_found_sooner_the_larger_it_is() -> None:
    noise = Events(1000, 0)
    small, large = (evidence_of_excess(Events(1000, events), noise, 0.001) for events in (10, 50))
    assert 0 < small < large


def test_without_repeated_rows_any_share_may_be_noise() -> None:
    assert evidence_of_excess(Events(1000, 1000), Events(0, 0), 0.001) < log(20)
    assert evidence_of_share(Events(1000, 1000), 0.001) > log(1e6)


def test_one_event_refutes_a_tolerance_of_none() -> None:
    assert evidence_of_share(Events(10, 1), 0.0) == inf


def test_a_batch_that_fails_as_a_whole_is_one_event() -> None:
    assert Events.of_batches(3200, 32, 1024) == Events(100, 1)


@pytest.mark.parametrize("row_squares", [0, 100 * 32**2])
def test_rows_that_fail_alone_are_independent(row_squares: int) -> None:
    assert Events.of_batches(3200, 10, 10, row_squares) == Events(3200, 10)


def test_chance_coincidences_do_not_make_rows_dependent() -> None:
    generator = random.Random(1)
    events = [bernoulli(generator, 0.2, 32) for _ in range(200)]
    counts = (6400, sum(events), sum(each**2 for each in events))
    assert Events.of_batches(*counts, 200 * 32**2).rows == pytest.approx(6400, rel=0.3)
    assert Events.of_batches(*counts).rows < 6400 / 4


@given(
    rows=st.integers(1, 10_000),
    events=st.integers(0, 10_000),
    repeated=st.integers(0, 10_000),
    repeats=st.integers(0, 10_000),
    tolerated=st.sampled_from([0.0, 0.001, 0.05, 1.0]),
)
# Every row of the candidate disagrees, and so do nearly all repeated rows.
@example(rows=6, events=6, repeated=2375, repeats=2256, tolerated=0.05)
@example(rows=6, events=6, repeated=20, repeats=19, tolerated=0.0)
def test_noise_only_weakens_the_evidence(rows: int, events: int, repeated: int, repeats: int, tolerated: float) -> None:
    candidate = Events(rows, min(rows, events))
    beyond_noise = evidence_of_excess(candidate, Events(repeated, min(repeated, repeats)), tolerated)
    assert beyond_noise <= evidence_of_share(candidate, tolerated) + 1e-6 or not beyond_noise
