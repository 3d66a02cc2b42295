from itertools import pairwise
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.arrivals import poisson


@given(st.integers(1, 500), st.floats(0.1, 5), st.integers())
def test_exactly_the_rate_that_was_asked_for_is_offered_in_order_and_in_time(
    rate: int, duration_s: float, seed: int
) -> None:
    arrivals = poisson(rate, duration_s, seed)

    assert len(arrivals) == round(rate * duration_s)
    assert arrivals == sorted(arrivals)
    assert all(0 <= each <= duration_s for each in arrivals)


def test_a_seed_gives_the_same_arrivals_again_and_another_seed_others() -> None:
    assert poisson(100, 1, 3) == poisson(100, 1, 3)
    assert poisson(100, 1, 3) != poisson(100, 1, 4)


def test_gaps_vary_as_much_as_they_last_as_those_of_a_poisson_process_do() -> None:
    arrivals = poisson(1000, 10, 1)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]

    assert stdev(gaps) / mean(gaps) == pytest.approx(1, abs=0.05)
