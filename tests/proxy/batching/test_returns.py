import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shoal_proxy.batching.latency import LatencyTable
from shoal_proxy.batching.returns import THINK_S, Burst, ReturningClients

MAX_ROWS = 64


def table() -> LatencyTable:
    learned = LatencyTable(MAX_ROWS)
    for rows in learned.sizes * 5:
        learned.observe(rows, 0.004 + 0.0001 * rows)
    return learned


TABLE = table()


def learned(think_s: list[float], bursts: int = 20, callers: int = 64) -> tuple[ReturningClients, float]:
    """Return what is known after bursts whose clients came back after these times, in turn."""
    returns, now_s = ReturningClients(), 100.0
    for _ in range(bursts):
        burst = returns.burst(now_s)
        for _ in range(callers):
            burst.add_response(1)
        for number in range(callers):
            if (think := think_s[number % len(think_s)]) < 1.0:
                burst.record_return(1, now_s + think)
        now_s += 0.02
    return returns, now_s


def hold_s(
    returns: ReturningClients, now_s: float, *, waiting: int = 1, outstanding: int = 63, after_s: float = 0.0
) -> float:
    burst = returns.burst(now_s)
    for _ in range(outstanding):
        burst.add_response(1)
    return returns.hold_s(waiting, [], TABLE, free_s=now_s + after_s, max_rows=MAX_ROWS)


def test_clients_that_all_come_back_at_once_are_held_for() -> None:
    returns, now_s = learned([0.0003, 0.0005, 0.0006])

    assert 0 < hold_s(returns, now_s) <= 0.002


def test_think_times_are_reported_apart_from_the_shortest_on() -> None:
    assert list(THINK_S) == sorted(set(THINK_S))


@pytest.mark.parametrize(
    "think_s", [[5.0], [0.1, 5.0], [0.02], [0.0005, 0.02]], ids=["never", "much later", "later", "half of them later"]
)
def test_clients_of_an_open_loop_are_never_held_for(think_s: list[float]) -> None:
    returns, now_s = learned(think_s)

    assert not returns.closed_loop
    assert hold_s(returns, now_s) == 0.0


def test_before_anything_was_seen_no_batch_is_held() -> None:
    assert hold_s(ReturningClients(), 5.0) == 0.0


@pytest.mark.parametrize(
    ("waiting", "outstanding", "after_s"),
    [
        pytest.param(MAX_ROWS, 10, 0.0, id="the batch is full"),
        pytest.param(5, 0, 0.0, id="no client is about to return"),
        pytest.param(1, 63, 0.05, id="clients not back by now will not be"),
    ],
)
def test_a_batch_is_not_held_in_vain(waiting: int, outstanding: int, after_s: float) -> None:
    returns, now_s = learned([0.0005])

    assert hold_s(returns, now_s, waiting=waiting, outstanding=outstanding, after_s=after_s) == 0.0


def gathering(per_caller_s: float, base_s: float = 0.0002) -> tuple[ReturningClients, float]:
    """Return what is known after bursts of many sizes, whose clients came back one after the other."""
    returns, now_s = ReturningClients(), 100.0
    for callers in (2, 62, 10, 54, 28, 36, *[32] * 20):
        burst = returns.burst(now_s)
        for _ in range(callers):
            burst.add_response(1)
        for number in range(callers):
            burst.record_return(1, now_s + base_s + number * per_caller_s)
        now_s += 0.02
    return returns, now_s


def test_two_batches_stay_two_where_gathering_all_clients_would_take_longer_in_each_round() -> None:
    quick, quick_s = gathering(30e-6)
    slow, slow_s = gathering(80e-6)

    # Half of them wait and the others are back within 2.6 ms, less than the 4 ms of a second batch; all take 5.
    assert hold_s(quick, quick_s, waiting=32, outstanding=32) > 0
    assert hold_s(slow, slow_s, waiting=32, outstanding=32) == 0.0


def test_clients_that_think_for_longer_than_a_second_batch_costs_are_not_waited_for_by_the_first_of_them() -> None:
    returns, now_s = learned([0.005, 0.0053])

    assert hold_s(returns, now_s, after_s=0.005) == 0.0


@given(st.lists(st.floats(0, 0.05), min_size=1, max_size=8), st.integers(0, 63), st.integers(0, 70), st.floats(0, 0.1))
@settings(deadline=None)
def test_no_hold_is_longer_than_the_longest_think_time(
    think_s: list[float], outstanding: int, waiting: int, after_s: float
) -> None:
    returns, now_s = learned(think_s, bursts=3, callers=8)

    assert 0 <= hold_s(returns, now_s, waiting=waiting, outstanding=outstanding, after_s=after_s) <= THINK_S[-1]


def test_counts_never_fall_below_none_and_bursts_are_forgotten() -> None:
    returns, chance, now_s = ReturningClients(), random.Random(1), 0.0
    away: list[tuple[Burst, int]] = []
    for _ in range(500):
        now_s += chance.random() * 0.01
        burst = returns.burst(now_s)
        for rows in (1, 3):
            burst.add_response(rows)
            away.append((burst, rows))
        chance.shuffle(away)
        for _ in range(chance.randint(0, 3)):
            if away:
                burst, rows = away.pop()
                burst.record_return(rows, now_s)
        assert all(known.outstanding >= 0 and known.clients >= 0 for known in returns._bursts)
        assert all(count >= 0 for count in returns._counts)
        assert len(returns._bursts) < 50
    assert all(0 <= share <= 1 for share in returns._shares)
    assert returns._shares == sorted(returns._shares)


def test_a_client_that_returns_at_the_last_moment_counts_as_returned() -> None:
    returns = ReturningClients()
    first = returns.burst(0.0)
    first.add_response(3)
    returns.burst(THINK_S[-1])
    first.record_return(3, THINK_S[-1])

    assert (first.outstanding, first.clients, first.returned_rows) == (0, 0, 3)
    assert first.gathering_s == THINK_S[-1]


def test_a_burst_is_gathered_when_nine_of_ten_are_back() -> None:
    burst = Burst(10.0)
    for number in range(11):
        burst.add_response(1)
        burst.record_return(1, 10.0 + number * 0.001)

    assert burst.gathering_s == pytest.approx(0.009)
    assert Burst(1.0).gathering_s == 0.0
