import hypothesis.strategies as st
import pytest
from hypothesis import given

from shoal_proxy.batching.rates import Traffic
from shoal_schema.interfaces.metrics import RejectionReason


@given(steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_rows_are_integrated_over_time_however_often_it_is_reported(steps: list[tuple[float, int, int]]) -> None:
    traffic = Traffic()
    traffic.advance(100.0)
    now_s, queued_row_s, row_s, busy_s = 100.0, 0.0, 0.0, 0.0
    for after_s, queued, running in steps:
        traffic.set_held_rows(queued, running)
        traffic.advance(now_s + after_s / 3)
        now_s += after_s
        traffic.advance(now_s)
        queued_row_s += queued * after_s
        row_s += (queued + running) * after_s
        busy_s += after_s if running else 0.0

    assert traffic.queued_row_s == pytest.approx(queued_row_s)
    assert traffic.row_s == pytest.approx(row_s)
    assert traffic.busy_s == pytest.approx(busy_s)
    assert 0 <= traffic.busy <= 1


def test_a_clock_that_stands_or_goes_back_adds_nothing() -> None:
    traffic = Traffic()
    traffic.set_held_rows(3, 2)
    for now_s in (50.0, 50.0, 49.0):
        traffic.advance(now_s)

    assert (traffic.row_s, traffic.busy_s) == (0.0, 0.0)


def test_the_rate_is_of_the_last_second_or_so() -> None:
    traffic = Traffic()
    traffic.advance(10.0)
    traffic.arrived_rows += 30
    traffic.advance(11.5)
    assert traffic.offered_rows_per_s == 20.0

    traffic.advance(12.0)
    assert traffic.offered_rows_per_s == 20.0  # too short a time for another word

    traffic.advance(13.5)
    assert traffic.offered_rows_per_s == 0.0


def test_a_request_rejected_unread_is_demand_of_a_row() -> None:
    traffic = Traffic()
    traffic.count_unread_rejection(RejectionReason.RUNTIME_AWAY)
    traffic.count_rejected(RejectionReason.LATE, 4)

    assert traffic.arrived_rows == 1
    assert traffic.refused_rows == {RejectionReason.RUNTIME_AWAY: 1, RejectionReason.LATE: 4}
