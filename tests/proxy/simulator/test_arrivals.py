from collections.abc import Callable

import numpy as np
import pytest

from shoal_proxy.simulator.arrivals import Times, bursty, gamma, on_off, poisson, scaled


def traces() -> list[object]:
    return [
        pytest.param(lambda seed: poisson(100, 20_000, seed=seed), id="poisson"),
        pytest.param(lambda seed: gamma(100, 20_000, cv=4, seed=seed), id="gamma"),
        pytest.param(lambda seed: on_off(50, 200, 20_000, quiet_s=2.0, busy_s=1.0, seed=seed), id="on-off"),
        pytest.param(lambda seed: bursty(100, 20_000, duration_s=200, seed=seed), id="bursty"),
    ]


@pytest.mark.parametrize("make", traces())
def test_a_trace_has_its_rate_and_comes_in_order(make: Callable[[int], Times]) -> None:
    trace = make(1)

    assert len(trace) == 20_000
    assert np.all(np.diff(trace) >= 0)
    assert trace[0] >= 0
    assert 20_000 / trace[-1] == pytest.approx(100, rel=0.15)


@pytest.mark.parametrize("make", traces())
def test_the_same_seed_gives_the_same_trace(make: Callable[[int], Times]) -> None:
    assert np.array_equal(make(3), make(3))
    assert not np.array_equal(make(3), make(4))


def cv_of_counts(trace: Times, window_s: float) -> float:
    counts = np.bincount((trace / window_s).astype(int))
    return float(counts.std() / counts.mean())


def test_gaps_vary_as_requested() -> None:
    gaps = np.diff(gamma(100, 50_000, cv=4, seed=1))

    assert gaps.std() / gaps.mean() == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("window_s", [0.1, 1.0, 10.0])
def test_a_bursty_trace_is_bursty_on_every_scale(window_s: float) -> None:
    plain = cv_of_counts(poisson(100, 20_000, seed=1), window_s)

    assert cv_of_counts(bursty(100, 20_000, duration_s=200, seed=1), window_s) > 2 * plain


def test_nothing_comes_while_it_is_off() -> None:
    gaps = np.diff(on_off(0, 1000, 2000, quiet_s=5.0, busy_s=0.2, seed=1))

    assert np.sum(gaps > 0.5) >= 5
    assert np.median(gaps) < 0.002


def test_twice_as_fast_takes_half_the_time() -> None:
    assert scaled(np.array([1.0, 2.0]), 2.0).tolist() == [0.5, 1.0]
