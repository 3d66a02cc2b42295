import hypothesis.strategies as st
import pytest
from hypothesis import given

from shoal_proxy.batching.rates import DrainRate

batches = st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 100)), max_size=20)


def test_before_the_first_batch_a_second_is_the_best_guess() -> None:
    assert DrainRate().retry_after_s(1000) == 1


@pytest.mark.parametrize(("rows", "seconds"), [(10, 1), (11, 2), (100, 10), (10_000, 60)])
def test_the_wait_is_what_the_rows_before_take_in_whole_seconds(rows: int, seconds: int) -> None:
    rate = DrainRate()
    rate.observe(8, 0.8)

    assert rate.retry_after_s(rows) == seconds


@given(batches, st.integers(0, 10**9))
def test_the_wait_is_always_between_a_second_and_a_minute(seen: list[tuple[int, float]], rows: int) -> None:
    rate = DrainRate()
    for batch_rows, seconds in seen:
        rate.observe(batch_rows, seconds)

    assert 1 <= rate.retry_after_s(rows) <= 60


@given(batches.filter(bool))
def test_the_rate_stays_within_what_was_seen(seen: list[tuple[int, float]]) -> None:
    rate = DrainRate()
    for rows, seconds in seen:
        rate.observe(rows, seconds)

    per_row = [seconds / rows for rows, seconds in seen]
    assert min(per_row) - 1e-9 <= rate.row_s <= max(per_row) + 1e-9


def test_a_runtime_that_becomes_slower_is_noticed() -> None:
    rate = DrainRate()
    rate.observe(1, 0.1)
    for _ in range(20):
        rate.observe(1, 1.0)

    assert rate.row_s == pytest.approx(1.0, abs=0.02)
