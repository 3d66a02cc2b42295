from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.batching.pace import Pace


def learned(alpha_s: float, beta_s: float, sizes: list[int], overhead_s: float = 0.002) -> Pace:
    pace = Pace()
    for rows in sizes:
        pace.observe(rows, alpha_s + beta_s * rows, overhead_s)
    return pace


def test_nothing_is_expected_before_anything_was_seen() -> None:
    pace = Pace()
    assert pace.forward_s(8) == 0
    assert pace.send_ahead_s(8, sent_s=5.0, freed_s=0.0) is None


@given(
    alpha_s=st.floats(0.001, 0.1),
    beta_s=st.floats(0, 0.005),
    sizes=st.lists(st.integers(1, 64), min_size=2, max_size=60),
    rows=st.integers(1, 64),
)
def test_a_linear_model_is_learned_from_two_sizes(alpha_s: float, beta_s: float, sizes: list[int], rows: int) -> None:
    pace = learned(alpha_s, beta_s, [*sizes, 1, 64])
    assert pace.forward_s(rows) == pytest.approx(alpha_s + beta_s * rows, rel=1e-3)


def test_one_size_alone_says_nothing_of_the_slope() -> None:
    assert learned(0.004, 0.0001, [32] * 10).forward_s(1) == pytest.approx(0.0072)


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 10)), max_size=50), st.integers(1, 1000))
def test_an_expectation_is_never_negative(seen: list[tuple[int, float]], rows: int) -> None:
    pace = Pace()
    for size, seconds in seen:
        pace.observe(size, seconds, None)
    assert pace.forward_s(rows) >= 0


def test_a_model_that_slows_down_tenfold_is_learned_anew_within_50_batches() -> None:
    pace = learned(0.004, 0.0001, [1, 64] * 50)
    for rows in [1, 64] * 25:
        pace.observe(rows, 0.04 + 0.001 * rows, 0.002)
    assert pace.forward_s(32) == pytest.approx(0.072, rel=0.1)


def test_the_next_batch_leaves_half_an_overhead_and_a_tick_before_forward_ends() -> None:
    pace = learned(0.004, 0.0001, [1, 64])
    # Sent at 10 s to an idle runtime: forward from 10.001 to 10.0082, so 10.0062 is in time.
    assert pace.send_ahead_s(32, sent_s=10.0, freed_s=9.0) == pytest.approx(10.0062)
    # Sent at 10 s behind another, which came back at 10.005: forward ran from 10.004 to 10.0112.
    assert pace.send_ahead_s(32, sent_s=10.0, freed_s=10.005) == pytest.approx(10.0092)


def test_where_the_host_is_the_bottleneck_nothing_leaves_ahead() -> None:
    assert learned(0.0001, 0.0, [1, 64]).send_ahead_s(32, sent_s=10.0, freed_s=9.0) is None


def test_a_queued_batch_says_nothing_of_the_overhead() -> None:
    pace = learned(0.004, 0.0, [8] * 5, overhead_s=0.002)
    pace.observe(8, 0.004, None)
    assert pace.overhead_s == pytest.approx(0.002)
