from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import given

from shoal_proxy.batching.pending import BatchKey
from shoal_proxy.batching.tables import _MAX_CAPS, _MAX_SHAPES, PROBE_AFTER, Tables


def key(length: int, parameters: bytes = b"") -> BatchKey:
    return BatchKey(shapes=(("x", (length,)),), parameters=parameters)


def test_each_shape_has_a_table_of_its_own_whatever_else_differs() -> None:
    tables = Tables(8)

    assert tables[key(1)] is tables[key(1, b"{}")] is tables[key(1).alone()]
    assert tables[key(1)] is not tables[key(2)]


def test_of_many_shapes_those_used_last_are_known() -> None:
    tables = Tables(8)
    often = tables[key(0)]
    for length in range(1, 3 * _MAX_SHAPES):
        tables[key(length)].observe(1, 0.01)
        assert tables[key(0)] is often

    assert len(tables.all()) == _MAX_SHAPES
    assert next(reversed(tables.all())) == key(0).shapes
    assert not tables[key(1)].known, "it was forgotten"


def test_every_table_begins_with_what_the_warm_up_measured() -> None:
    tables = Tables(8)
    tables.preset(((1, 0.01), (8, 0.02)))

    assert tables[key(5)].known


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 100), st.booleans()), max_size=200))
def test_the_memory_of_a_shape_shrinks_by_failures_and_grows_by_batches_that_fit(
    steps: list[tuple[int, int, bool]],
) -> None:
    tables = Tables(32)
    for length, rows, fits in steps:
        before = tables.max_rows(key(length))
        if fits:
            tables.fitted(key(length), rows)
            assert tables.max_rows(key(length)) in (before, min(2 * before, 32))
            continue
        cap = tables.ran_out_of_memory(key(length), rows)
        assert 1 <= cap == tables.max_rows(key(length)) <= before
        assert cap == before if rows == 1 else cap <= max(1, rows // 2)

    assert tables.max_rows(key(9)) == 32
    assert tables.least_max_rows == min(tables.max_rows(key(length)) for length in range(1, 4))


def full_batches(tables: Tables, count: int, holds: Callable[[int], int]) -> list[int]:
    """Run full batches on a device that holds so many rows by the number of the batch; return those that failed."""
    failed = []
    for number in range(count):
        rows = tables.max_rows(key(1))
        if rows > holds(number):
            failed.append(number)
            tables.ran_out_of_memory(key(1), rows)
        else:
            tables.fitted(key(1), rows)
    return failed


def test_a_limit_heals_when_there_is_memory_again() -> None:
    tables = Tables(32)
    full_batches(tables, 10, lambda number: 1)
    assert tables.max_rows(key(1)) == 1

    assert full_batches(tables, 6 * PROBE_AFTER, lambda number: 32) == []

    assert tables.max_rows(key(1)) == 32
    assert tables.capped_rows is None
    assert not tables.caps, "nothing is left to be counted"


def test_a_memory_that_stays_too_small_is_tried_more_and_more_rarely() -> None:
    tables = Tables(32)

    failed = full_batches(tables, 20_000, lambda number: 5)

    assert tables.max_rows(key(1)) == tables.capped_rows == 4
    assert len(failed) < 30
    assert len([number for number in failed if number >= 10_000]) <= 10


def test_a_single_row_that_does_not_fit_caps_nothing() -> None:
    tables = Tables(32)

    assert tables.ran_out_of_memory(key(1), 1) == 32
    assert not tables.caps

    for rows in (32, 16, 8, 4, 2):
        tables.ran_out_of_memory(key(1), rows)
    tables.forgive(key(1), 32)
    assert tables.max_rows(key(1)) == 32


def test_shapes_without_end_that_do_not_fit_cost_bounded_memory() -> None:
    tables = Tables(32)
    for length in range(2 * _MAX_CAPS):
        tables.ran_out_of_memory(key(length), 32)

    assert len(tables.caps) == _MAX_CAPS
    assert tables.max_rows(key(2 * _MAX_CAPS - 1)) == 16
