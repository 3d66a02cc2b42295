"""The unit of a distance: ordinary rows are a unit apart whatever the tails, and rounding is a small part of it."""

from collections.abc import Callable, Mapping

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as arrays

from shoal_proxy.batching.row_checks.distance import ResultDistance, Row, Scale, Scales, row_of
from shoal_proxy.batching.row_checks.suspicion import DEPENDENT, GROSS
from shoal_schema.wire.datatypes import Array, float32_to_bfloat16
from tests.proxy.batching.families import bfloat16

ROWS = 16
Draw = Callable[[np.random.Generator, int], Array]

DRAWS: Mapping[str, Draw] = {
    "normal": lambda rng, rows: rng.standard_normal((rows, 4)),
    "offset": lambda rng, rows: 300 + 3 * rng.standard_normal((rows, 4)),
    "cauchy": lambda rng, rows: rng.standard_cauchy((rows, 4)),
    "one cauchy": lambda rng, rows: rng.standard_cauchy((rows, 1)),
    "exp": lambda rng, rows: np.exp(4 * rng.standard_normal((rows, 1))),
    "steep exp": lambda rng, rows: np.exp(10 * rng.standard_normal((rows, 1))),
    "one huge column": lambda rng, rows: rng.standard_normal((rows, 4)) * [1e9, 1, 1, 1],
    "mostly zero": lambda rng, rows: rng.standard_normal((rows, 4)) * (rng.random((rows, 4)) < 0.2),
    "softmax": lambda rng, rows: rng.dirichlet(np.full(10, 0.3), rows),
}


def rows_of(values: Array) -> list[Row]:
    return [{"y": row[None]} for row in values]


def ruler_of(draw: Draw, rng: np.random.Generator, datatype: str = "FP32", checks: int = 80) -> ResultDistance:
    """Return a ruler that has learned from so many checks."""
    ruler = ResultDistance({"y": datatype})
    for _ in range(checks):
        values = draw(rng, ROWS).astype(np.float32)
        ruler.learn(rows_of(float32_to_bfloat16(values) if datatype == "BF16" else values))
    return ruler


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("seed", range(3))
def test_ordinary_rows_that_were_exchanged_are_grossly_apart(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ruler = ruler_of(DRAWS[name], rng)
    one, other = (DRAWS[name](rng, 400).astype(np.float32) for _ in range(2))
    different = (one != other).any(axis=1)

    apart = np.array(ruler.units_of_all(rows_of(one), rows_of(other)))[different]

    assert (apart > GROSS).mean() > 0.5, (seed, np.quantile(apart, [0.1, 0.25, 0.5]))


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("seed", range(3))
def test_rounding_to_bfloat16_is_a_small_part_of_a_unit(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ruler = ruler_of(DRAWS[name], rng, "BF16")
    values = DRAWS[name](rng, 400).astype(np.float32)
    rounded = [{"y": float32_to_bfloat16(row)} for row in np.split(values * np.float32(1.002), len(values))]
    given = [{"y": float32_to_bfloat16(row)} for row in np.split(values, len(values))]

    assert max(ruler.units_of_all(given, rounded)) < GROSS, seed


@pytest.mark.parametrize("seed", range(3))
def test_quantization_by_the_batch_is_within_the_tolerance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ruler = ruler_of(DRAWS["normal"], rng)
    values = rng.standard_normal((400, 4)).astype(np.float32)
    step = 4 / 127

    assert max(ruler.units_of_all(rows_of(values), rows_of(np.round(values / step) * step))) < GROSS / 4


def test_one_huge_row_changes_no_unit_of_the_others() -> None:
    rng = np.random.default_rng(0)
    ruler = ruler_of(DRAWS["normal"], rng)
    huge = rng.standard_normal((ROWS, 4)).astype(np.float32)
    huge[3] = 1e12
    one, other = rows_of(rng.standard_normal((2, 4)).astype(np.float32))
    before = ruler.units(one, other)
    for _ in range(5):
        ruler.learn(rows_of(huge))

    assert ruler.units(one, other) == pytest.approx(before, rel=0.5)


def test_a_unit_follows_results_whose_scale_changes() -> None:
    scale = Scale()
    rng = np.random.default_rng(0)
    scale.learn(rng.standard_normal((ROWS, 2)), 0.01)
    for _ in range(400):
        scale.learn(50 * rng.standard_normal((ROWS, 2)) + 1000, 0.01)

    assert scale.spread == pytest.approx(50, rel=0.6)
    assert scale.center == pytest.approx(1000, rel=0.05)
    assert scale.magnitude == pytest.approx(1030, rel=0.1)


def test_scales_are_kept_of_a_bounded_number_of_sizes() -> None:
    scales = Scales()
    for size in range(1, 100):
        scales.learn(np.arange(2.0 * size).reshape(2, size), 0.01)

    assert scales[99].spread is not None
    assert scales[1].spread is None


@settings(max_examples=60, deadline=None)
@given(
    table=st.integers(1, 6).flatmap(
        lambda width: arrays.arrays(
            np.float32, (5, width), elements=st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False)
        )
    )
)
def test_a_pair_alone_is_as_far_apart_as_among_others(table: Array) -> None:
    ruler = ResultDistance({"y": "FP32"})
    rows = rows_of(table)
    ruler.learn(rows)
    turned = [*rows[1:], rows[0]]

    together = ruler.units_of_all(rows, turned)

    assert together == [ruler.units(one, other) for one, other in zip(rows, turned, strict=True)]
    assert ruler.units_of_all(rows, rows) == [0.0] * len(rows)
    assert all(far >= 0 and np.isfinite(far) for far in together)
    assert ruler.units_of_all(turned, rows) == together


def pair(one: Array, other: Array, datatype: str = "FP32") -> float:
    return ResultDistance({"y": datatype}).units({"y": one}, {"y": other})


def test_results_without_a_number_in_common_are_apart_and_a_few_odd_ones_are_no_evidence() -> None:
    nan, values = np.full((1, 4), np.nan, np.float32), np.ones((1, 4), np.float32)
    one_odd = values.copy()
    one_odd[0, 0] = np.inf

    assert pair(nan, values) == 1.0
    assert pair(nan, nan) == 0.0
    assert 0 < pair(one_odd, values) < GROSS
    assert pair(one_odd, one_odd) == 0.0
    ruler = ResultDistance({"y": "FP32"})
    ruler.learn([{"y": values}, {"y": nan}])
    assert ruler.units_of_all([{"y": nan}, {"y": values}], [{"y": nan}, {"y": values}]) == [0.0, 0.0]


def test_results_of_other_shapes_are_compared_where_both_are() -> None:
    short, long = np.ones((1, 3), np.float32), np.ones((1, 5), np.float32)

    assert pair(short, long) == 0.0
    assert pair(short, 2 * long) > GROSS
    assert pair(short, short[0]) > GROSS
    assert pair(np.zeros((1, 0), np.float32), np.zeros((1, 0), np.float32)) == 0.0
    assert ResultDistance({"y": "FP32"}).units({"y": short}, {"z": short}) == 1.0
    assert ResultDistance({"y": "FP32"}).units_of_all([{"y": short}] * 2, [{"y": short}, {"y": long}]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("datatype", "one", "other"),
    [
        ("INT64", np.array([2]), np.array([3])),
        ("BOOL", np.array([True]), np.array([False])),
        ("BYTES", np.array([b"a"], object), np.array([b"b"], object)),
        ("INT64", np.array([[1, 2]]), np.array([[1, 2, 3]])),
    ],
)
def test_labels_are_equal_or_not(datatype: str, one: Array, other: Array) -> None:
    ruler = ResultDistance({"y": datatype})
    ruler.learn([{"y": one}, {"y": one}])

    assert ruler.exact
    assert ruler.units_of_all([{"y": one}], [{"y": other}]) == [1.0]
    assert ruler.units_of_all([{"y": one}], [{"y": one}]) == [0.0]
    assert ruler.share({"y": one}, {"y": other}) == 0.0


def test_integers_that_differ_by_many_are_scores() -> None:
    ruler, rng = ResultDistance({"y": "UINT8"}), np.random.default_rng(0)
    ruler.learn(rows_of(rng.integers(0, 256, (ROWS, 4)).astype(np.uint8)))
    score = np.array([[9, 90, 200, 30]], np.uint8)

    assert not ruler.exact
    assert 0 < ruler.units({"y": score}, {"y": score + np.uint8(1)}) < GROSS / 4
    assert ruler.units({"y": score}, {"y": score[:, ::-1]}) > GROSS


def test_labels_beside_numbers_do_not_count() -> None:
    ruler = ResultDistance({"y": "FP32", "label": "INT64"})
    one: Row = {"y": np.ones((1, 2), np.float32), "label": np.array([1])}
    other: Row = {"y": np.ones((1, 2), np.float32), "label": np.array([2])}

    assert ruler.units(one, other) == 0.0
    assert ruler.units_of_all([one], [other]) == [0.0]


def test_the_share_of_the_magnitude_does_not_follow_the_order_of_lists() -> None:
    ruler = ResultDistance({"y": "FP32"})
    listed = np.array([[[3.0, 1.0, 2.0]]], np.float32)

    assert ruler.share({"y": listed}, {"y": listed[..., ::-1]}) == 0.0
    assert ruler.share({"y": listed[0]}, {"y": listed[0, :, ::-1]}) > DEPENDENT
    assert ruler.share({"y": listed[0]}, {"z": listed[0]}) == 0.0
    assert ruler.share({"y": 0 * listed}, {"y": 0 * listed}) == 0.0


def test_long_rows_are_compared_in_part() -> None:
    long = np.zeros((1, 100_000), np.float32)
    shifted = long + 1

    assert pair(long, shifted) > GROSS


def test_a_row_is_cut_to_its_own_length() -> None:
    outputs = {"y": np.arange(12).reshape(2, 6), "z": np.arange(2)}
    row = row_of(outputs, 1, {"y": (1, 4)})

    assert row["y"].tolist() == [[6, 7, 8, 9]]
    assert row["z"].tolist() == [1]


def test_bfloat16_is_rounded() -> None:
    assert bfloat16(np.array([1.001, 3.1415])).tolist() == [1.0, 3.140625]
