import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.batching.rates import BusiestSecond, Throughput


def serve(
    throughput: Throughput, per_s: float, seconds: float, *, rows: int = 1, took_s: float = 0.001, begin_s: float = 0.0
) -> None:
    """Let batches come at even gaps; the proxy uses half a core."""
    for number in range(round(per_s * seconds)):
        sent_s = begin_s + number / per_s
        throughput.record(rows, sent_s=sent_s, completed_s=sent_s + took_s, cpu_s=sent_s / 2)


def busiest(throughput: Throughput) -> BusiestSecond:
    assert throughput.busiest is not None
    return throughput.busiest


def test_before_the_first_batch_nothing_is_measured() -> None:
    assert Throughput().busiest is None


def test_pauses_between_batches_count() -> None:
    throughput = Throughput()
    serve(throughput, per_s=100, seconds=3, rows=8)

    found = busiest(throughput)
    assert found.rows_per_s == pytest.approx(800, rel=0.02)
    assert found.batch_rows == 8
    assert found.runtime_busy == pytest.approx(0.1, rel=0.05)
    assert found.proxy_busy == pytest.approx(0.5, rel=0.05)


def test_a_burst_of_a_moment_is_no_rate() -> None:
    throughput = Throughput()
    throughput.record(64, sent_s=5.0, completed_s=5.001, cpu_s=0.0)

    assert busiest(throughput).rows_per_s == 64


def test_the_busiest_second_stays_when_less_comes_and_goes_when_it_is_old() -> None:
    throughput = Throughput()
    serve(throughput, per_s=100, seconds=2)
    serve(throughput, per_s=10, seconds=100, begin_s=2)
    assert busiest(throughput).rows_per_s == pytest.approx(100, rel=0.02)

    serve(throughput, per_s=10, seconds=5, begin_s=700)
    assert busiest(throughput).rows_per_s == pytest.approx(10, rel=0.2)


def test_a_batch_longer_than_a_second_counts_with_all_its_time() -> None:
    throughput = Throughput()
    for number in range(5):
        throughput.record(20, sent_s=10.0 * number, completed_s=10.0 * (number + 1), cpu_s=0.0)

    assert busiest(throughput).rows_per_s == 2
    assert busiest(throughput).runtime_busy == 1


def test_the_proxys_own_time_counts_against_all_that_a_long_batch_took() -> None:
    throughput = Throughput()
    throughput.record(20, sent_s=0.0, completed_s=4.0, cpu_s=0.0)
    throughput.record(20, sent_s=0.5, completed_s=4.0, cpu_s=1.0)

    assert busiest(throughput) == BusiestSecond(rows_per_s=10, batch_rows=20, runtime_busy=1, proxy_busy=0.25)


def test_what_is_sent_a_second_later_belongs_to_the_next_second() -> None:
    throughput = Throughput()
    for sent_s in (0.0, 1.0, 2.0):
        throughput.record(10, sent_s=sent_s, completed_s=sent_s + 0.1, cpu_s=0.0)

    assert busiest(throughput).rows_per_s == 10


def test_of_seconds_with_as_many_rows_the_last_is_reported() -> None:
    throughput = Throughput()
    for sent_s, took_s in ((0.0, 0.25), (1.0, 0.5), (2.0, 0.125)):
        throughput.record(10, sent_s=sent_s, completed_s=sent_s + took_s, cpu_s=0.0)
    assert busiest(throughput).runtime_busy == 0.125

    throughput.record(1, sent_s=601.0, completed_s=601.125, cpu_s=0.0)
    assert busiest(throughput).rows_per_s == 10, "it was as busy ten minutes ago"


@pytest.mark.parametrize(("ended_s", "rows_per_s"), [(600.5, 10), (600.75, 1)], ids=["ten minutes", "more"])
def test_the_busiest_second_is_forgotten_after_ten_minutes(ended_s: float, rows_per_s: float) -> None:
    throughput = Throughput()
    throughput.record(10, sent_s=0.0, completed_s=0.5, cpu_s=0.0)
    throughput.record(1, sent_s=ended_s - 0.25, completed_s=ended_s, cpu_s=0.0)

    assert busiest(throughput).rows_per_s == rows_per_s


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 3), st.floats(0, 3)), min_size=1))
def test_no_more_rows_a_second_are_reported_than_there_were(batches: list[tuple[int, float, float]]) -> None:
    throughput, sent_s = Throughput(), 0.0
    for rows, gap_s, took_s in batches:
        sent_s += gap_s
        throughput.record(rows, sent_s=sent_s, completed_s=sent_s + took_s, cpu_s=0.0)

    found = busiest(throughput)
    assert 0 < found.rows_per_s <= sum(rows for rows, _, _ in batches)
    assert 0 <= found.runtime_busy <= 1 + 1e-9
