"""Windows and batches of rows, and the search for the batch size."""

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline.dispatch import (
    BUDGET_S,
    LARGEST,
    SURE,
    WorkUnit,
    best_size,
    cut_batches,
    expected_s,
    next_trial,
)
from shoal_runtime.offline.windows import EARLY_ROWS, MAX_ROWS, TARGET_BYTES, Window, early_first, window_rows


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=60), st.integers(1, 16), st.data())
def test_every_row_is_batched_once_with_rows_of_its_key_and_length(
    rows: list[tuple[int, int]], limit: int, data: st.DataObject
) -> None:
    keys, sizes = [key for key, _ in rows], np.array([size for _, size in rows], dtype=np.int64)
    good = np.array(sorted(data.draw(st.sets(st.integers(0, len(rows) - 1)))) if rows else [], dtype=np.int64)
    batches = cut_batches(keys, sizes, good, limit)

    assert sorted(row for batch in batches for row in batch.tolist()) == good.tolist()
    assert all(len(batch) <= limit and len({keys[row] for row in batch}) == 1 for batch in batches)
    for key in set(keys):
        lengths = [sizes[row] for batch in batches for row in batch if keys[row] == key]
        assert lengths == sorted(lengths)


@given(st.integers(2, 50))
def test_halves_are_a_partition(count: int) -> None:
    first, second = (each.rows for each in WorkUnit(1, np.arange(count)).halved())

    assert [*first, *second] == list(range(count))
    assert len(first) - len(second) in {0, 1}
    assert len(second)


@given(st.floats(0, 1e10), st.integers(1, 65_536))
def test_a_window_holds_batches_and_is_bounded(row_bytes: float, batch_size: int) -> None:
    rows = window_rows(row_bytes, batch_size)

    assert rows >= 1
    assert rows <= max(MAX_ROWS, 8 * batch_size)
    assert rows <= min(batch_size, 64) or rows * row_bytes <= TARGET_BYTES


@given(st.lists(st.integers(1, 9), max_size=4), st.integers(1, 6))
def test_the_first_rows_are_a_window_of_their_own_with_their_faults(counts: list[int], batch_size: int) -> None:
    ends = list(itertools.accumulate(counts, initial=0))
    numbers = [range(start, stop) for start, stop in itertools.pairwise(ends)]
    windows = [
        Window(pa.table({"row": rows}), {at: str(row) for at, row in enumerate(rows) if row % 3 == 0})
        for rows in map(list, numbers)
    ]
    cut = list(early_first(windows, batch_size))

    assert [row for each in cut for row in each.table["row"].to_pylist()] == list(range(ends[-1]))
    assert all(each.table["row"][at].as_py() == int(message) for each in cut for at, message in each.faults.items())
    assert sum(len(each.faults) for each in cut) == sum(row % 3 == 0 for row in range(ends[-1]))
    assert not cut or cut[0].table.num_rows == min(batch_size, EARLY_ROWS, counts[0])


def tried(
    seconds_of: dict[int, float | None] | None, each_row_s: float, fixed_s: float, most: int
) -> dict[int, float | None]:
    seconds: dict[int, float | None] = {}
    while (count := next_trial(seconds, most)) is not None:
        assert count not in seconds
        seconds[count] = (seconds_of or {}).get(count, fixed_s + count * each_row_s)
    return seconds


def test_a_model_with_a_cost_per_call_gets_many_rows() -> None:
    seconds = tried(None, each_row_s=1e-6, fixed_s=1e-3, most=10_000)

    assert max(seconds) == LARGEST
    assert best_size(seconds, 10_000) == LARGEST


def test_a_model_with_a_cost_per_row_gets_few() -> None:
    assert best_size(tried(None, each_row_s=1e-3, fixed_s=0, most=10_000), 10_000) == 1


def test_a_slow_model_that_gains_from_batching_gets_more_rows_than_were_tried() -> None:
    seconds = tried(None, each_row_s=0.05, fixed_s=0.1, most=10_000)

    assert 1 < max(seconds) < SURE
    assert (best_size(seconds, 10_000), best_size(seconds, 10)) == (SURE, 10)


def test_a_trial_slower_than_the_best_rate_is_repeated() -> None:
    assert expected_s(4, {}) == 0
    assert expected_s(4, {1: 1.0, 2: 1.0}) == 2.0
    assert expected_s(4, {1: None}) == 0


def test_trials_end_with_the_rows_a_failure_or_the_time() -> None:
    assert max(tried(None, 1e-6, 1e-3, most=20)) == 16
    failing = tried({8: None}, 1e-6, 1e-3, most=1000)
    assert max(failing) == 8
    assert best_size(failing, 1000) == 4
    slow = tried(None, each_row_s=0.1, fixed_s=0, most=1000)
    assert sum(2 * each for each in slow.values() if each) <= 2 * BUDGET_S
    assert best_size({1: None}, 10) == 1
