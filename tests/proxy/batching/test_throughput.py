import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.batching.throughput import Busiest, Throughput


def serve(
    throughput: Throughput, per_s: float, seconds: float, *, rows: int = 1, took_s: float = 0.001, begin_s: float = 0.0
) -> None:
    """Let batches come at even gaps; the proxy uses half a core."""
    for number in range(round(per_s * seconds)):
        sent_s = begin_s + number / per_s
        throughput.served(rows, sent_s=sent_s, answered_s=sent_s + took_s, cpu_s=sent_s / 2)


def busiest(throughput: Throughput) -> Busiest:
    assert throughput.busiest is not None
    return throughput.busiest


def test_before_the_first_batch_nothing_is_known() -> None:
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
    throughput.served(64, sent_s=5.0, answered_s=5.001, cpu_s=0.0)

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
        throughput.served(20, sent_s=10.0 * number, answered_s=10.0 * (number + 1), cpu_s=0.0)

    assert busiest(throughput).rows_per_s == 2
    assert busiest(throughput).runtime_busy == 1


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 3), st.floats(0, 3)), min_size=1))
def test_no_more_rows_a_second_are_told_than_there_were(batches: list[tuple[int, float, float]]) -> None:
    throughput, sent_s = Throughput(), 0.0
    for rows, gap_s, took_s in batches:
        sent_s += gap_s
        throughput.served(rows, sent_s=sent_s, answered_s=sent_s + took_s, cpu_s=0.0)

    found = busiest(throughput)
    assert 0 < found.rows_per_s <= sum(rows for rows, _, _ in batches)
    assert 0 <= found.runtime_busy <= 1 + 1e-9
