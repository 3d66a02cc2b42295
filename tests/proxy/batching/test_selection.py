"""The rule of `plan` against a plain reading of it."""

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shoal_proxy.batching.latency import LatencyTable
from shoal_proxy.batching.selection import BatchCosts, select_batch

MAX_ROWS = 8
START_S = 10.0


@dataclass(eq=False)
class One:
    """A waiting request."""

    remaining_rows: int
    soft_deadline_s: float


def costs(base_s: float = 0.004, row_s: float = 0.001, allowed: tuple[int, ...] = ()) -> BatchCosts:
    table = LatencyTable(MAX_ROWS, allowed)
    for size in table.sizes * 30:
        table.observe(size, base_s + row_s * size)
    return BatchCosts(table, 0.0005, MAX_ROWS)


PLAIN = costs()
PADDED = costs(allowed=(2, 4, 8))


def ones(*left_ms: float) -> list[One]:
    """Return requests of one row, due so many milliseconds after the start."""
    return [One(1, START_S + ms / 1000) for ms in left_ms]


def selected(waiting: list[One], known: BatchCosts = PLAIN) -> tuple[list[One], list[One]]:
    """Return the requests with a row in the batch, and the rejected ones."""
    plan = select_batch(waiting, known, START_S)
    rows, batch = plan.rows, []
    for request in waiting:
        if request not in plan.rejected and rows > 0:
            batch.append(request)
            rows -= request.remaining_rows
    return batch, list(plan.rejected)


def test_without_deadlines_the_first_in_line_fill_the_batch() -> None:
    waiting = [One(3, float("inf")) for _ in range(5)]

    assert selected(waiting) == (waiting[:3], [])
    assert select_batch(waiting, PLAIN, START_S).rows == MAX_ROWS


def test_a_request_that_would_be_late_even_alone_is_rejected_and_the_rest_is_served() -> None:
    waiting = ones(1, 50, 5, 50)

    assert selected(waiting) == ([waiting[1], waiting[3]], [waiting[0], waiting[2]])


def test_when_all_would_be_late_all_are_rejected() -> None:
    waiting = ones(1, 2, 3)

    assert selected(waiting) == ([], waiting)


def test_one_request_is_rejected_rather_than_all_served_in_small_batches() -> None:
    waiting = ones(6, *[60] * 7)

    assert selected(waiting) == (waiting[1:], waiting[:1])


def test_a_request_that_misses_this_batch_but_can_make_the_next_stays() -> None:
    waiting = ones(6, *[60] * 20)

    batch, rejected = selected(waiting)

    assert (batch, rejected) == (waiting[1:9], waiting[:1])


@pytest.mark.parametrize(
    ("base_s", "rows", "due_ms", "expected"),
    [
        pytest.param(0.004, 5, 900, 4, id="five rows cost eight: four first"),
        pytest.param(0.004, 8, 900, 8, id="nothing is padded"),
        pytest.param(0.004, 7, 900, 7, id="seven of eight are worth it"),
        pytest.param(0.1, 5, 900, 5, id="a batch more would cost too much"),
        pytest.param(0.004, 5, 12.6, 5, id="the rest would be late"),
    ],
)
def test_a_batch_just_above_a_padded_size_is_trimmed_if_that_pays(
    base_s: float, rows: int, due_ms: float, expected: int
) -> None:
    known = costs(base_s, 0.001, allowed=(2, 4, 8))

    assert select_batch(ones(*[due_ms] * rows), known, START_S).rows == expected


requests = st.builds(One, st.integers(1, 3), st.floats(START_S - 0.001, START_S + 0.03))
lines = st.lists(requests, min_size=1, max_size=14)


@given(lines, st.sampled_from([PLAIN, PADDED, costs(0.01, 0.0), costs(0.0, 0.004)]))
@settings(max_examples=200, deadline=None)
def test_no_request_of_the_batch_is_late_and_no_servable_one_is_rejected(waiting: list[One], known: BatchCosts) -> None:
    plan = select_batch(waiting, known, START_S)
    batch, rejected = selected(waiting, known)

    assert 0 <= plan.rows <= MAX_ROWS
    assert plan.rows or rejected == waiting
    assert plan.rows <= sum(request.remaining_rows for request in waiting if request not in rejected)
    finish_s = known.finish_s(START_S, plan.rows)
    assert all(request.soft_deadline_s >= finish_s for request in batch)
    alone_s = known.finish_s(START_S, 1)
    next_s = START_S + known.table.p95_s(1)
    for request in rejected:
        if request.soft_deadline_s >= alone_s:
            assert request.soft_deadline_s < max(finish_s, known.finish_s(next_s, MAX_ROWS)), "it could be served after"


@given(lines)
@settings(max_examples=200, deadline=None)
def test_the_batch_is_the_first_in_line_or_the_one_of_the_best_rate(waiting: list[One]) -> None:
    plan, known = select_batch(waiting, PLAIN, START_S), PLAIN
    hopeful = [request for request in waiting if request.soft_deadline_s >= known.finish_s(START_S, 1)]
    if not hopeful:
        return
    everything = min(MAX_ROWS, sum(request.remaining_rows for request in hopeful))
    first, rows = [], everything
    for request in hopeful:
        if rows > 0:
            first.append(request)
            rows -= request.remaining_rows
    if all(request.soft_deadline_s >= known.finish_s(START_S, everything) for request in first):
        assert plan.rows == everything
        assert list(plan.rejected) == [request for request in waiting if request not in hopeful]
        return

    def possible(size: int) -> int:
        finish_s = known.finish_s(START_S, size)
        return min(size, sum(request.remaining_rows for request in hopeful if request.soft_deadline_s >= finish_s))

    best = max(rows / known.table.p95_s(rows) for size in range(1, MAX_ROWS + 1) if (rows := possible(size)))
    assert plan.rows / known.table.p95_s(plan.rows) == pytest.approx(best)


def exact(seconds: dict[int, float], *, max_rows: int = MAX_ROWS, allowed: tuple[int, ...] = ()) -> BatchCosts:
    """Return costs of a runtime that always takes just so long."""
    table = LatencyTable(max(seconds), allowed)
    table.preset(tuple(seconds.items()))
    return BatchCosts(table, 0.0, max_rows)


def test_a_response_exactly_at_the_deadline_is_in_time() -> None:
    alone_s, both_s = (PLAIN.finish_s(START_S, rows) for rows in (1, 2))

    last = One(1, alone_s)
    assert selected([last]) == ([last], [])
    pair = [One(1, both_s), One(1, both_s)]
    assert selected(pair) == (pair, [])


def test_a_request_that_does_not_begin_in_this_batch_does_not_shrink_it() -> None:
    waiting = [One(MAX_ROWS, START_S + 60), One(1, PLAIN.finish_s(START_S, 1))]

    assert select_batch(waiting, PLAIN, START_S).rows == MAX_ROWS
    assert select_batch(waiting[::-1], PLAIN, START_S).rejected == [waiting[1]]


def test_a_request_that_could_only_just_make_the_next_batch_stays() -> None:
    first = [One(1, START_S + 60) for _ in range(MAX_ROWS)]
    after_s = PLAIN.finish_s(START_S + PLAIN.table.p95_s(MAX_ROWS), 1)
    hurried = One(1, START_S + 0.006)
    just, late = One(1, after_s), One(1, after_s - 1e-6)

    assert selected([hurried, *first, just])[1] == [hurried]
    assert selected([hurried, *first, late])[1] == [hurried, late]


def test_a_time_of_nothing_divides_nothing() -> None:
    assert BatchCosts(LatencyTable(8), 0.0, 8).rate(4) == pytest.approx(4e9)


def test_a_padded_size_that_serves_no_more_rows_a_second_is_no_reason_to_trim() -> None:
    even = exact({2: 0.25, 4: 0.5}, max_rows=4, allowed=(2, 4))
    assert even.rate(2) == even.rate(4)
    assert select_batch(ones(*[9000] * 4), even, START_S).rows == 4
    assert select_batch(ones(*[9000] * 3), even, START_S).rows == 2

    slower = exact({2: 0.25, 4: 0.375}, max_rows=4, allowed=(2, 4))
    assert slower.rate(2) == slower.rate(3)
    assert select_batch(ones(*[9000] * 3), slower, START_S).rows == 3


def test_what_is_left_by_trimming_may_only_just_make_the_batch_after() -> None:
    rest_s = PADDED.finish_s(START_S + PADDED.table.p95_s(4), 1)

    def trimmed(soft_deadline_s: float) -> int:
        waiting = [*ones(*[900] * 4), One(1, soft_deadline_s)]
        return select_batch(waiting, PADDED, START_S).rows

    assert trimmed(rest_s) == 4
    assert trimmed(rest_s - 1e-6) == 5


def test_all_go_together_if_that_is_just_in_time_although_fewer_would_be_served_faster() -> None:
    dear = exact({1: 0.1, 2: 0.9}, max_rows=2)
    just_s = dear.finish_s(START_S, 2)

    assert dear.rate(1) > dear.rate(2)
    assert select_batch([One(1, just_s), One(1, just_s)], dear, START_S).rows == 2
    assert select_batch([One(1, just_s - 1e-6), One(1, just_s)], dear, START_S).rows == 1


def test_of_sizes_that_serve_as_many_rows_a_second_the_smallest_goes_which_holds_the_oldest() -> None:
    even = exact({2: 0.25, 4: 0.5}, max_rows=4, allowed=(2, 4))
    waiting = [One(1, START_S + 0.3), *ones(*[9000] * 4)]

    assert even.rate(2) == even.rate(4)
    assert selected(waiting, even) == (waiting[:2], [])


def test_a_deadline_at_the_end_of_the_fastest_batch_is_met() -> None:
    hurried, end_s = One(1, PLAIN.finish_s(START_S, 1)), PLAIN.finish_s(START_S, MAX_ROWS)
    waiting = [hurried, *[One(1, end_s) for _ in range(MAX_ROWS)]]

    assert selected(waiting) == (waiting[1:], [hurried])


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 34, 35, 36, 37, 64])
def test_the_batch_is_as_large_as_its_end_allows_also_between_the_sizes_that_the_table_knows(rows: int) -> None:
    table = LatencyTable(64)
    for size in table.sizes * 30:
        table.observe(size, 0.004 + 0.001 * size)
    known = BatchCosts(table, 0.0005, 64)
    end_s = (known.finish_s(START_S, rows) + known.finish_s(START_S, rows + 1)) / 2 if rows < 64 else START_S + 9
    hurried = One(1, known.finish_s(START_S, 1))

    assert select_batch([hurried, *[One(1, end_s) for _ in range(80)]], known, START_S).rows == rows


def test_a_batch_of_just_a_padded_size_stays_whole_although_a_smaller_one_is_faster() -> None:
    dear = exact({2: 0.1, 4: 0.9, 8: 1.9}, max_rows=8, allowed=(2, 4, 8))

    assert dear.rate(2) > dear.rate(4)
    assert select_batch(ones(*[9000] * 4), dear, START_S).rows == 4
    assert select_batch(ones(*[9000] * 3), dear, START_S).rows == 2
