import random
from collections.abc import Callable
from itertools import pairwise
from math import inf, nan

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shoal_proxy.batching.latency import LatencyTable, knots_for

MAX_ROWS = 64
PADDED = (1, 2, 4, 8, 16, 32, 64)
Model = Callable[[int], float]


def linear(rows: int) -> float:
    return 0.004 + 0.0001 * rows


def stepped(rows: int) -> float:
    """A device that computes 16 rows at a time."""
    return 0.003 * -(-rows // 16)


def padded(rows: int) -> float:
    return linear(next(size for size in PADDED if size >= rows))


def trained(
    model: Model, batches: int = 400, *, noise: float = 0.0, seed: int = 1, table: LatencyTable | None = None
) -> LatencyTable:
    chance = random.Random(seed)
    table = table or LatencyTable(MAX_ROWS)
    for _ in range(batches):
        rows = chance.randint(1, MAX_ROWS)
        table.observe(rows, model(rows) * chance.lognormvariate(0, noise))
    return table


@given(st.integers(1, 65536), st.lists(st.integers(1, 1024), max_size=6, unique=True))
def test_knots_rise_and_reach_the_limit(max_rows: int, allowed: list[int]) -> None:
    knots = knots_for(max_rows, sorted(allowed))

    assert list(knots) == sorted(set(knots))
    assert len(knots) <= 8 * 17
    if not allowed:
        assert (knots[0], knots[-1]) == (1, max_rows)
    else:
        assert set(knots) <= set(allowed)
        assert knots[-1] == next((size for size in sorted(allowed) if size >= max_rows), max(allowed))


def test_before_anything_was_seen_no_batch_takes_time() -> None:
    table = LatencyTable(MAX_ROWS)

    assert not table.known
    assert table.p95_s(1) == table.p95_s(MAX_ROWS) == 0.0
    assert table.largest(0.0, MAX_ROWS) == MAX_ROWS


@pytest.mark.parametrize(("model", "within"), [(linear, 0.01), (stepped, 0.25)])
def test_what_a_batch_takes_is_learned_for_every_size(model: Model, within: float) -> None:
    table = trained(model, 2000)

    for rows in range(1, MAX_ROWS + 1):
        # Between two knots that stand on different steps the table is a ramp.
        near = {model(max(1, rows - 4)), model(rows), model(min(MAX_ROWS, rows + 4))}
        assert min(near) * (1 - within) <= table.mean_s(rows) <= max(near) * (1 + within)


def test_sizes_that_the_runtime_pads_take_the_padded_ones_time() -> None:
    table = trained(padded, 2000, table=LatencyTable(MAX_ROWS, PADDED))

    for rows in range(1, MAX_ROWS + 1):
        assert table.mean_s(rows) == pytest.approx(padded(rows), rel=0.03)


def test_a_line_stands_in_for_sizes_that_have_not_been_seen() -> None:
    table = LatencyTable(MAX_ROWS)
    for rows in (1, 8, 2, 16) * 20:
        table.observe(rows, linear(rows))

    assert table.mean_s(64) == pytest.approx(linear(64), rel=0.1)


def test_where_large_batches_take_more_than_their_share_small_ones_still_take_time() -> None:
    table = LatencyTable(MAX_ROWS)
    for rows in (32, 64) * 20:
        table.observe(rows, 1e-5 * rows * rows)

    assert table.mean_s(1) > 1e-5


def test_a_runtime_that_always_takes_the_same_has_no_margin() -> None:
    table = LatencyTable(MAX_ROWS)
    for _ in range(50):
        table.observe(8, 0.01)

    assert table.p95_s(8) == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
def test_about_nineteen_of_twenty_batches_stay_within_the_table(noise: float) -> None:
    table, chance, within = trained(linear, 500, noise=noise), random.Random(2), 0
    for _ in range(2000):
        rows = chance.randint(1, MAX_ROWS)
        took_s = linear(rows) * chance.lognormvariate(0, noise)
        within += took_s <= table.p95_s(rows)
        table.observe(rows, took_s)

    assert 0.92 <= within / 2000 <= 0.98


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("factor", [0.1, 0.3, 3.0, 10.0, 100.0])
def test_a_table_that_is_wrong_recovers_within_50_batches(factor: float, noise: float) -> None:
    table = trained(linear, 500, noise=noise)

    trained(lambda rows: factor * linear(rows), 50, noise=noise, seed=3, table=table)

    for rows in (1, 8, 33, 64):
        assert table.mean_s(rows) == pytest.approx(factor * linear(rows), rel=0.3)
        assert table.p95_s(rows) < 2 * factor * linear(rows)


def test_a_device_that_becomes_slower_at_one_size_is_believed_at_all_sizes() -> None:
    table = trained(linear)

    for _ in range(8):
        table.observe(1, 10 * linear(1))

    assert table.mean_s(64) > 5 * linear(64)


@pytest.mark.parametrize("outlier_s", [0.0, 1e-9, 10.0, 1e6])
def test_one_outlier_hardly_moves_the_table(outlier_s: float) -> None:
    table = trained(linear)
    before_s = [table.mean_s(rows) for rows in range(1, MAX_ROWS + 1)]

    table.observe(32, outlier_s)

    after_s = [table.mean_s(rows) for rows in range(1, MAX_ROWS + 1)]
    assert after_s == pytest.approx(before_s, rel=0.1)
    assert table.p95_s(32) < 1.3 * linear(32)


@pytest.mark.parametrize("nonsense_s", [nan, inf, -inf, -1.0])
@pytest.mark.parametrize("batches", [0, 100])
def test_what_is_no_time_teaches_nothing(nonsense_s: float, batches: int) -> None:
    table = trained(linear, batches)
    before = table.measurements()

    table.observe(8, nonsense_s)

    assert table.measurements() == before


def test_a_warm_up_is_a_beginning() -> None:
    table = LatencyTable(MAX_ROWS)
    table.preset([(rows, linear(rows)) for rows in (1, 8, 64)])

    assert table.known
    for rows in (1, 8, 30, 64):
        assert table.mean_s(rows) == pytest.approx(linear(rows), rel=0.1)


@st.composite
def tables(draw: st.DrawFn) -> LatencyTable:
    allowed = draw(st.sampled_from([(), PADDED, (7, 50)]))
    table = LatencyTable(draw(st.integers(1, 50)) if not allowed else 50, allowed)
    observed = st.tuples(st.integers(1, table.sizes[-1]), st.floats(0, 10))
    for rows, seconds in draw(st.lists(observed, max_size=30)):
        table.observe(rows, seconds)
    return table


@given(tables())
@settings(max_examples=200, deadline=None)
def test_the_table_never_falls_with_size_and_is_never_beside_itself(table: LatencyTable) -> None:
    sizes = range(1, table.sizes[-1] + 1)
    for read in (table.mean_s, table.p95_s):
        times_s = [read(rows) for rows in sizes]
        assert all(0 <= seconds < 100 for seconds in times_s)
        assert all(below <= above + 1e-12 for below, above in pairwise(times_s))
    assert all(table.mean_s(rows) <= table.p95_s(rows) for rows in sizes)
    assert not table.known or table.mean_s(1) > 0


@given(tables(), st.floats(0, 12), st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_the_largest_size_within_a_time_is_what_the_times_state(
    table: LatencyTable, within_s: float, most: int
) -> None:
    most = min(most, table.sizes[-1])

    rows = table.largest(within_s, most)

    assert 0 <= rows <= most
    if rows:
        assert table.p95_s(rows) <= within_s + 1e-9
    if rows < most and rows + 1 <= most:
        assert table.p95_s(rows + 1) >= within_s - 1e-9


def test_batches_that_seem_to_take_no_time_are_no_trouble() -> None:
    table = LatencyTable(8)
    table.preset([(1, 0.01), (8, 0.02)])

    for _ in range(20):
        table.observe(1, 0.0)

    assert 0 < table.mean_s(1) < 0.001


@pytest.mark.parametrize(("rows", "nearer", "farther"), [(33, 32, 36), (35, 36, 32)])
def test_a_batch_between_two_knots_weighs_more_for_the_nearer_one(rows: int, nearer: int, farther: int) -> None:
    table = LatencyTable(MAX_ROWS)
    for size in table.sizes * 20:
        table.observe(size, linear(size))
    before = {size: mean for size, mean, _, _ in table.measurements()}
    for _ in range(3):
        table.observe(rows, 1.2 * linear(rows))
    after = {size: mean for size, mean, _, _ in table.measurements()}

    assert after[nearer] - before[nearer] > 2 * (after[farther] - before[farther]) > 0


def test_a_batch_half_way_between_two_knots_weighs_equally_for_both() -> None:
    table = LatencyTable(MAX_ROWS)
    table.observe(34, 0.01)

    assert [size for size, _, _, seen in table.measurements() if seen] == [32, 36]
    assert table.mean_s(32) == pytest.approx(table.mean_s(36))
    assert table.mean_s(34) == pytest.approx(0.01)
    assert table.largest_measured == 36


@pytest.mark.parametrize("rows", [1, 8, 40, 64, 100])
def test_a_batch_of_a_knots_size_or_of_more_than_the_last_affects_that_one_alone(rows: int) -> None:
    table = LatencyTable(MAX_ROWS)
    table.observe(rows, 0.01)

    assert [size for size, _, _, seen in table.measurements() if seen] == [min(rows, 64)]
    assert table.mean_s(rows) == pytest.approx(0.01)


@pytest.mark.parametrize("seconds", [-1e-9, -1.0, inf, nan])
def test_a_time_that_is_none_has_no_effect(seconds: float) -> None:
    table = LatencyTable(MAX_ROWS)
    table.observe(1, seconds)

    assert not table.known


def test_a_clock_that_did_not_move_has_seen_a_batch() -> None:
    table = LatencyTable(MAX_ROWS)
    table.observe(4, 0.0)

    assert table.known
    assert 0 < table.mean_s(4) < 1e-6


def test_a_runtime_that_became_a_little_slower_is_believed_after_some_dozen_batches() -> None:
    table = LatencyTable(MAX_ROWS)
    for took_s, batches in ((0.01, 400), (0.0115, 40)):
        for _ in range(batches):
            table.observe(8, took_s)

    assert table.mean_s(8) > 0.011


def test_how_much_a_size_varies_is_known_after_a_few_batches() -> None:
    table = LatencyTable(MAX_ROWS)
    for _ in range(3):
        table.observe(8, 0.01)
        table.observe(8, 0.012)

    assert table.p95_s(8) > 1.01 * table.mean_s(8)


def test_a_size_lies_between_those_that_were_seen() -> None:
    table = LatencyTable(MAX_ROWS)
    assert table.bounds(8) == (0.0, inf)
    for rows in (4, 16) * 50:
        table.observe(rows, linear(rows))
    small_s, large_s = table.mean_s(4), table.mean_s(16)

    assert table.bounds(3) == (0.0, small_s)
    assert table.bounds(4) == (small_s, small_s)
    assert table.bounds(8) == (small_s, large_s)
    assert table.bounds(16) == (large_s, large_s)
    assert table.bounds(17) == (large_s, inf)
    assert (table.largest_measured, LatencyTable(MAX_ROWS).largest_measured) == (16, 0)


def test_what_is_padded_lies_where_its_padded_size_does() -> None:
    table = LatencyTable(MAX_ROWS, PADDED)
    for rows in (4, 16) * 50:
        table.observe(rows, padded(rows))

    assert table.bounds(3) == (table.mean_s(4), table.mean_s(4))
    assert table.bounds(5) == (table.mean_s(4), table.mean_s(16))
    assert table.bounds(9) == (table.mean_s(16), table.mean_s(16))


def settled() -> LatencyTable:
    """Return a table that has seen every size often enough to be sure of it."""
    table = LatencyTable(MAX_ROWS)
    for size in table.sizes * 20:
        table.observe(size, linear(size))
    return table


@pytest.mark.parametrize("ratio", [3.0, 0.7])
def test_four_batches_in_a_row_that_differ_alike_are_no_noise_and_three_are(ratio: float) -> None:
    table = settled()
    other_s = table.mean_s(64)

    for _ in range(3):
        table.observe(8, ratio * linear(8))
    assert table.mean_s(64) == pytest.approx(other_s, rel=0.02)
    table.observe(8, ratio * linear(8))

    assert table.mean_s(64) == pytest.approx(ratio * other_s, rel=0.15)


@pytest.mark.parametrize("ratio", [1.2, 0.85])
def test_batches_that_differ_by_less_are_noise(ratio: float) -> None:
    table = settled()
    other_s = table.mean_s(64)
    for _ in range(8):
        table.observe(8, ratio * linear(8))

    assert table.mean_s(64) == pytest.approx(other_s, rel=0.05)
