"""When a request would be answered, by its place."""

import pytest

from shoal_proxy.batching.latency import LatencyTable
from shoal_proxy.batching.selection import BatchCosts, predict_finish_s, start_after_s

MOST = 8
AROUND_S = 0.001


def costs() -> BatchCosts:
    table = LatencyTable(MOST)
    for rows in table.sizes * 200:
        table.observe(rows, 0.01 + 0.002 * rows)
    return BatchCosts(table, AROUND_S, MOST)


COSTS = costs()
BATCH_S = COSTS.finish_s(0.0, MOST)
GUARD = 0.03
"""Of one's time, where the table errs by less."""


def finish_s(rows_ahead: int = 0, rows: int = 1, *, within_s: float = 10.0, **placed: bool) -> float:
    queued_behind, others_first = placed.get("queued_behind", False), placed.get("others_first", False)
    return predict_finish_s(
        rows_ahead,
        rows,
        COSTS,
        free_s=[100.0],
        within_s=within_s,
        queued_behind=queued_behind,
        others_first=others_first,
    )


def test_where_nothing_else_must_be_done_first_a_request_gets_a_response_with_those_of_its_own_batch() -> None:
    assert finish_s() == COSTS.finish_s(100.0, 1)
    assert finish_s(MOST - 1) == COSTS.finish_s(100.0, MOST)


@pytest.mark.parametrize(
    ("rows_ahead", "rows", "full_batches"), [(MOST, 1, 1), (MOST - 1, 2, 1), (0, MOST + 1, 1), (2 * MOST, 1, 2)]
)
def test_each_full_batch_before_it_takes_its_time_and_its_own_is_full_too(
    rows_ahead: int, rows: int, full_batches: int
) -> None:
    begin_s = 100.0 + full_batches * COSTS.table.mean_s(MOST)

    assert finish_s(rows_ahead, rows) == pytest.approx(COSTS.finish_s(begin_s, MOST) + GUARD * 10.0)


@pytest.mark.parametrize(
    ("free_s", "batches", "expected_s"),
    [
        ([5.0], 3, 8.0),
        ([5.0, 5.5], 0, 5.0),
        ([5.0, 5.5], 1, 5.5),
        ([5.0, 5.5], 3, 6.5),
        ([5.0, 9.0], 1, 6.0),
        ([5.0, 5.0, 5.0, 5.0], 9, 7.0),
    ],
)
def test_batches_before_it_run_on_all_executors(free_s: list[float], batches: int, expected_s: float) -> None:
    assert start_after_s(free_s, batches, 1.0) == expected_s


def test_behind_a_batch_that_is_sent_ahead_a_full_one_is_expected() -> None:
    assert finish_s(queued_behind=True) == pytest.approx(COSTS.finish_s(100.0, MOST) + GUARD * 10.0)


def test_behind_batches_of_other_keys_its_own_is_expected_to_stay_as_small_as_it_is() -> None:
    alone_s = predict_finish_s(0, 1, COSTS, free_s=[100.0], within_s=10.0, queued_behind=False)
    assert alone_s == finish_s(), "no batches of other keys"
    assert finish_s(2, 3, others_first=True) == pytest.approx(COSTS.finish_s(100.0, 5) + GUARD * 10.0)
    full_first_s = 100.0 + COSTS.table.mean_s(MOST)
    assert finish_s(MOST, 1, others_first=True) == pytest.approx(COSTS.finish_s(full_first_s, MOST) + GUARD * 10.0)


def test_where_there_is_no_time_for_two_batches_only_the_hopeless_are_rejected() -> None:
    short_s = 2 * BATCH_S - 1e-9

    assert finish_s(5 * MOST, 3, within_s=short_s, queued_behind=True) == COSTS.finish_s(100.0, 3)
    assert finish_s(5 * MOST, 3 * MOST, within_s=short_s) == COSTS.finish_s(100.0, MOST)
    assert finish_s(MOST, 1, within_s=2 * BATCH_S) > COSTS.finish_s(100.0, MOST), "with just enough, places count"


def test_what_must_be_to_spare_never_eats_into_the_time_of_two_batches() -> None:
    behind_s = COSTS.finish_s(100.0, MOST)

    assert finish_s(queued_behind=True, within_s=2 * BATCH_S + 0.0005) == pytest.approx(behind_s + 0.0005)
    assert finish_s(queued_behind=True, within_s=2 * BATCH_S) == pytest.approx(behind_s)


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 0.03, 0.03), (0.04, 0.03, 0.05), (0.5, 0.05, 0.05)])
def test_what_must_be_to_spare_follows_how_much_the_runtime_varies_within_bounds(
    noise: float, least: float, most: float
) -> None:
    table = LatencyTable(MOST)
    for number in range(400):
        table.observe(MOST, 0.01 * (1 + noise * (number % 3 - 1)))
    known = BatchCosts(table, 0.0, MOST)

    spare_s = predict_finish_s(0, 1, known, free_s=[0.0], within_s=10.0, queued_behind=True) - known.finish_s(0.0, MOST)

    assert least - 1e-9 <= spare_s / 10.0 <= most + 1e-9
