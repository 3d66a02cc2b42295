from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from shoal_proxy.batching.pending import BatchKey
from shoal_proxy.batching.tables import _MOST_CAPS, _MOST_SHAPES, Tables


def key(length: int, parameters: bytes = b"") -> BatchKey:
    return BatchKey(shapes=(("x", (length,)),), parameters=parameters)


def test_each_shape_has_a_table_of_its_own_whatever_else_differs() -> None:
    tables = Tables(8)

    assert tables[key(1)] is tables[key(1, b"{}")] is tables[key(1).alone()]
    assert tables[key(1)] is not tables[key(2)]


def test_of_many_shapes_those_used_last_are_known() -> None:
    tables = Tables(8)
    often = tables[key(0)]
    for length in range(1, 3 * _MOST_SHAPES):
        tables[key(length)].observe(1, 0.01)
        assert tables[key(0)] is often

    assert len(tables.all()) == _MOST_SHAPES
    assert next(reversed(tables.all())) == key(0).shapes
    assert not tables[key(1)].known, "it was forgotten"


def test_every_table_begins_with_what_the_warm_up_measured() -> None:
    tables = Tables(8)
    tables.preset(((1, 0.01), (8, 0.02)))

    assert tables[key(5)].known


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 100)), max_size=20))
def test_the_memory_of_a_shape_only_shrinks_and_holds_a_row(failures: list[tuple[int, int]]) -> None:
    tables = Tables(32)
    for length, rows in failures:
        before = tables.max_rows(key(length))
        cap = tables.ran_out_of_memory(key(length), rows)
        assert 1 <= cap == tables.max_rows(key(length)) <= before
        assert cap <= max(1, rows // 2)

    assert tables.max_rows(key(9)) == 32
    assert tables.least_max_rows == min(tables.max_rows(key(length)) for length in range(1, 4))


def test_shapes_without_end_that_do_not_fit_cost_bounded_memory() -> None:
    tables = Tables(32)
    for length in range(2 * _MOST_CAPS):
        tables.ran_out_of_memory(key(length), 32)

    assert len(tables.caps) == _MOST_CAPS
    assert tables.max_rows(key(2 * _MOST_CAPS - 1)) == 16
