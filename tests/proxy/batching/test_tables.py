from collections.abc import Callable
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from shoal_proxy.batching.pending import BatchKey
from shoal_proxy.batching.tables import PROBE_AFTER, LatencyTables


def key(length: int, parameters: bytes = b"") -> BatchKey:
    return BatchKey(shapes=(("x", (length,)),), parameters=parameters)


def test_each_shape_has_a_table_of_its_own_whatever_else_differs() -> None:
    tables = LatencyTables(8)

    assert tables[key(1)] is tables[key(1, b"{}")] is tables[key(1).alone()]
    assert tables[key(1)] is not tables[key(2)]


def test_of_many_shapes_those_used_last_are_known() -> None:
    tables = LatencyTables(8)
    often = tables[key(0)]
    for length in range(1, 1000):
        tables[key(length)].observe(1, 0.01)
        assert tables[key(0)] is often

    assert len(tables.all()) <= 100
    assert next(reversed(tables.all())) == key(0).shapes
    assert not tables[key(1)].known, "it was forgotten"


def test_the_table_used_last_is_known_of_two() -> None:
    tables = LatencyTables(8)
    for length in (1, 2, 1):
        assert not tables[key(length)].known

    assert list(tables.all()) == [key(2).shapes, key(1).shapes]


def test_every_table_begins_with_what_the_warm_up_measured() -> None:
    tables = LatencyTables(8)
    tables.preset(((1, 0.01), (8, 0.02)))

    assert tables[key(5)].known


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 100), st.booleans()), max_size=200))
def test_the_memory_of_a_shape_shrinks_by_failures_and_grows_by_batches_that_fit(
    steps: list[tuple[int, int, bool]],
) -> None:
    tables = LatencyTables(32)
    for length, rows, fits in steps:
        before = tables.max_rows(key(length))
        if fits:
            tables.record_fit(key(length), rows)
            assert tables.max_rows(key(length)) in (before, min(2 * before, 32))
            continue
        cap = tables.ran_out_of_memory(key(length), rows)
        assert 1 <= cap == tables.max_rows(key(length)) <= before
        assert cap == before if rows == 1 else cap <= max(1, rows // 2)

    assert tables.max_rows(key(9)) == 32
    assert tables.least_max_rows == min(tables.max_rows(key(length)) for length in range(1, 4))


def full_batches(tables: LatencyTables, count: int, holds: Callable[[int], int]) -> list[int]:
    """Run full batches on a device that holds so many rows by the number of the batch; return those that failed."""
    failed = []
    for number in range(count):
        rows = tables.max_rows(key(1))
        if rows > holds(number):
            failed.append(number)
            tables.ran_out_of_memory(key(1), rows)
        else:
            tables.record_fit(key(1), rows)
    return failed


def test_a_limit_heals_when_there_is_memory_again() -> None:
    tables = LatencyTables(32)
    full_batches(tables, 10, lambda number: 1)
    assert tables.max_rows(key(1)) == 1

    assert full_batches(tables, 6 * PROBE_AFTER, lambda number: 32) == []

    assert tables.max_rows(key(1)) == 32
    assert tables.capped_rows is None
    assert not tables.caps, "nothing is left to be counted"


def test_a_memory_that_stays_too_small_is_tried_more_and_more_rarely() -> None:
    tables = LatencyTables(32)

    failed = full_batches(tables, 20_000, lambda number: 5)

    assert tables.max_rows(key(1)) == tables.capped_rows == 4
    assert len(failed) < 30
    assert len([number for number in failed if number >= 10_000]) <= 10


def test_twice_as_many_batches_must_fit_before_each_next_try_up_to_a_thousand() -> None:
    tables = LatencyTables(32)

    failed = full_batches(tables, 5_000, lambda number: 5)

    assert failed[:3] == [0, 1, 2], "32, 16 and 8 rows"
    fitted_between = [later - earlier - 1 for earlier, later in pairwise(failed[2:])]
    assert fitted_between == [32, 64, 128, 256, 512, 1024, 1024, 1024]


def test_a_try_that_fails_makes_the_next_one_rarer_once_however_small_its_pieces_must_become() -> None:
    tables = LatencyTables(32)

    failed = full_batches(tables, 200, lambda number: 4 if number <= 2 + PROBE_AFTER else 1)

    tried = 3 + PROBE_AFTER
    assert failed == [0, 1, 2, tried, tried + 1, tried + 2, tried + 3 + 2 * PROBE_AFTER]


def test_batches_that_fitted_before_a_limit_changed_do_not_affect_it() -> None:
    tables = LatencyTables(32)
    for rows in (32, 16, 8):
        tables.ran_out_of_memory(key(1), rows)
    for change in (lambda: tables.ran_out_of_memory(key(1), 4), lambda: tables.restore_limit(key(1), 4)):
        for _ in range(PROBE_AFTER - 1):
            tables.record_fit(key(1), tables.max_rows(key(1)))
        change()
    for _ in range(PROBE_AFTER - 1):
        tables.record_fit(key(1), 4)
    assert tables.max_rows(key(1)) == 4

    tables.record_fit(key(1), 4)
    assert tables.max_rows(key(1)) == 8


def test_only_full_batches_state_that_there_is_memory() -> None:
    tables = LatencyTables(32)
    tables.ran_out_of_memory(key(1), 32)
    for _ in range(2 * PROBE_AFTER):
        tables.record_fit(key(1), 15)

    assert tables.max_rows(key(1)) == 16


def test_restoring_a_limit_never_changes_a_larger_one() -> None:
    tables = LatencyTables(32)
    tables.ran_out_of_memory(key(1), 32)

    for _ in range(PROBE_AFTER - 1):
        tables.record_fit(key(1), 16)
    for length, rows in ((1, 8), (1, 16), (2, 8)):
        tables.restore_limit(key(length), rows)
    assert (tables.max_rows(key(1)), tables.max_rows(key(2))) == (16, 32)

    tables.record_fit(key(1), 16)
    assert tables.max_rows(key(1)) == 32, "the batches that fitted still count"


def test_a_single_row_that_does_not_fit_caps_nothing() -> None:
    tables = LatencyTables(32)

    assert tables.ran_out_of_memory(key(1), 1) == 32
    assert not tables.caps

    for rows in (32, 16, 8, 4, 2):
        tables.ran_out_of_memory(key(1), rows)
    tables.restore_limit(key(1), 32)
    assert tables.max_rows(key(1)) == 32


def test_shapes_without_end_that_do_not_fit_cost_bounded_memory() -> None:
    tables = LatencyTables(32)
    for length in range(5000):
        tables.ran_out_of_memory(key(length), 32)

    assert len(tables.caps) <= 2000
    assert tables.max_rows(key(4999)) == 16
