import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_proxy.simulator.arrivals import Times
from shoal_proxy.simulator.optimum import most_in_time


def brute_force(arrived: Sequence[float], due: Sequence[float], latency: Sequence[float]) -> int:
    """Try every sequence of batches of every subset, in any order."""

    def best(waiting: frozenset[int], free: float) -> int:
        most = 0
        for batch in subsets(waiting, len(latency)):
            finish = max(free, *(arrived[i] for i in batch)) + latency[len(batch) - 1]
            if finish <= min(due[i] for i in batch):
                most = max(most, len(batch) + best(waiting - set(batch), finish))
        return most

    return best(frozenset(range(len(arrived))), 0.0)


def subsets(items: frozenset[int], largest: int) -> Iterator[tuple[int, ...]]:
    for size in range(1, min(len(items), largest) + 1):
        yield from itertools.combinations(items, size)


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[float], list[float], list[float]]:
    arrived = sorted(draw(st.lists(st.integers(0, 20), min_size=1, max_size=6)))
    latency = list(itertools.accumulate(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)), initial=0))[1:]
    timeouts = draw(st.lists(st.integers(1, 10), min_size=1, max_size=len(arrived)))
    due = list(itertools.accumulate((a + timeouts[i % len(timeouts)] for i, a in enumerate(arrived)), max))
    return [float(a) for a in arrived], [float(d) for d in due], [float(t) + 1 for t in latency]


@settings(max_examples=400, deadline=None)
@given(instances())
def test_it_is_what_trying_everything_finds(instance: tuple[list[float], list[float], list[float]]) -> None:
    assert most_in_time(*instance) == brute_force(*instance)


def test_a_long_trace_agrees_with_the_plain_recursion() -> None:
    random = np.random.default_rng(7)
    for load in (0.5, 1.0, 3.0):
        arrived = np.cumsum(random.exponential(1 / load, 1_500))
        due = arrived + 12.0
        latency = [3.0 + 0.5 * rows for rows in range(1, 9)]

        assert most_in_time(arrived.tolist(), due.tolist(), latency) == plain(arrived, due, latency)


def plain(arrived: Times, due: Times, latency: Sequence[float]) -> int:
    """The recursion of the module's docstring, over all refusals rather than a band of them."""
    count = len(arrived)
    free = np.full((count + 1, count + 1), np.inf)
    free[0] = 0.0
    for end in range(1, count + 1):
        free[end, 1:] = free[end - 1, :-1]
        for rows in range(1, min(len(latency), end) + 1):
            finish = np.maximum(free[end - rows], arrived[end - 1]) + latency[rows - 1]
            finish[finish > due[end - rows]] = np.inf
            free[end] = np.minimum(free[end], finish)
    return count - int(np.argmax(np.isfinite(free[count])))


def test_no_request_is_faster_than_alone() -> None:
    assert most_in_time([0.0, 1.0], [0.9, 1.9], [1.0, 1.0]) == 0


def test_all_requests_fit_when_there_is_time() -> None:
    assert most_in_time([0.0, 0.5, 1.0], [9.0, 9.5, 10.0], [1.0, 1.1]) == 3


def test_no_requests_are_all_in_time() -> None:
    assert most_in_time([], [], [1.0]) == 0


def test_it_aborts_when_enough_are_lost() -> None:
    arrived = [float(second) for second in range(1000)]

    assert most_in_time(arrived, [a + 0.5 for a in arrived], [1.0], give_up_at=10) == 990


@pytest.mark.parametrize(
    ("arrived", "due", "latency", "name"),
    [
        pytest.param([1.0, 0.0], [2.0, 2.0], [1.0], "arrived_s", id="arrivals"),
        pytest.param([0.0, 1.0], [3.0, 2.0], [1.0], "due_s", id="due"),
        pytest.param([0.0, 1.0], [3.0, 3.0], [1.0, 0.5], "latency_s", id="latency"),
    ],
)
def test_what_is_out_of_order_is_named(arrived: list[float], due: list[float], latency: list[float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        most_in_time(arrived, due, latency)
