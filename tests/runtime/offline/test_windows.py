"""Which rows travel together, how many, and in what order they are tried."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline.sizing import BUDGET_S, LARGEST, best_size, next_trial
from shoal_runtime.offline.windows import MAX_ROWS, TARGET_BYTES, cut_batches, halves, window_rows


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=60), st.integers(1, 16), st.data())
def test_every_row_travels_once_with_rows_of_its_kind_and_about_its_length(
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
def test_halves_are_all_of_it(count: int) -> None:
    first, second = halves(np.arange(count))

    assert [*first, *second] == list(range(count))
    assert len(first) - len(second) in {0, 1}
    assert len(second)


@given(st.floats(0, 1e10), st.integers(1, 65_536))
def test_a_window_holds_batches_and_is_bounded(row_bytes: float, batch_size: int) -> None:
    rows = window_rows(row_bytes, batch_size)

    assert rows >= 1
    assert rows <= max(MAX_ROWS, 8 * batch_size)
    assert rows <= min(batch_size, 64) or rows * row_bytes <= TARGET_BYTES


def tried(
    seconds_of: dict[int, float | None] | None, each_row_s: float, fixed_s: float, most: int
) -> dict[int, float | None]:
    seconds: dict[int, float | None] = {}
    while (count := next_trial(seconds, most)) is not None:
        assert count not in seconds
        seconds[count] = (seconds_of or {}).get(count, fixed_s + count * each_row_s)
    return seconds


def test_a_model_with_a_cost_of_each_call_takes_many_rows() -> None:
    seconds = tried(None, each_row_s=1e-6, fixed_s=1e-3, most=10_000)

    assert max(seconds) == LARGEST
    assert best_size(seconds) == LARGEST


def test_a_model_whose_rows_cost_alike_takes_few() -> None:
    assert best_size(tried(None, each_row_s=1e-3, fixed_s=0, most=10_000)) == 1


def test_trials_end_where_rows_end_where_a_batch_fails_and_in_time() -> None:
    assert max(tried(None, 1e-6, 1e-3, most=20)) == 16
    failing = tried({8: None}, 1e-6, 1e-3, most=1000)
    assert max(failing) == 8
    assert best_size(failing) == 4
    slow = tried(None, each_row_s=0.1, fixed_s=0, most=1000)
    assert sum(2 * each for each in slow.values() if each) <= 2 * BUDGET_S
    assert best_size({1: None}) == 1
