"""The comparison of two results of one batch, against a slow one that follows the definition word for word."""

from itertools import combinations
from math import inf, isinf, isnan, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal_proxy.rollout.comparison import (
    PIECE_ELEMENTS,
    BatchComparison,
    ComparedOutput,
    OutputDifference,
    OutputLengths,
    top_k_agrees,
)
from shoal_schema.interfaces.rollout import OutputTolerance
from shoal_schema.wire.datatypes import DATATYPES, Array, float32_to_bfloat16

EXACT = OutputTolerance(max_abs_error=0.0, max_rel_error=0.0)
ODD = st.sampled_from([0.0, -0.0, 1.0, 1.0005, 2.0, nan, inf, -inf, 1e30])


def compared(
    stable: Array,
    other: Array | None,
    tolerance: OutputTolerance | None = None,
    lengths: OutputLengths | None = None,
    datatypes: tuple[str, str] | None = None,
) -> OutputDifference:
    """Return the difference of one output."""
    names = datatypes or tuple(DATATYPES[each.dtype] if each is not None else "" for each in (stable, other))
    comparison = BatchComparison(
        len(stable),
        {"y": ComparedOutput(stable, names[0])},
        {} if other is None else {"y": ComparedOutput(other, names[1])},
        {} if tolerance is None else {"y": tolerance},
        None if lengths is None else {"y": lengths},
    )
    for _ in comparison.pieces():
        pass
    return comparison.differences["y"]


def agrees(stable: float, other: float, tolerance: OutputTolerance) -> bool:
    if isnan(stable) or isnan(other):
        return isnan(stable) and isnan(other)
    if isinf(stable) or isinf(other):
        return stable == other
    return abs(stable - other) <= tolerance.max_abs_error + tolerance.max_rel_error * abs(stable)


@given(st.data(), st.integers(1, 6), st.integers(0, 4), st.floats(0, 1), st.floats(0, 1))
def test_numbers_agree_as_defined(data: Any, rows: int, width: int, most: float, share: float) -> None:
    pair = [data.draw(arrays(np.float64, (rows, width), elements=ODD | st.floats(-3, 3))) for _ in range(2)]
    tolerance = OutputTolerance(max_abs_error=most, max_rel_error=share)
    expected = [
        all(agrees(a, b, tolerance) for a, b in zip(left, right, strict=True))
        for left, right in zip(pair[0].tolist(), pair[1].tolist(), strict=True)
    ]
    difference = compared(pair[0], pair[1], tolerance)
    assert (difference.rows, difference.disagreements, difference.change) == (rows, expected.count(False), "")


def common_choice(stable: list[float], other: list[float], k: int) -> bool:
    """Return whether some ``k`` positions hold the largest numbers of both rows."""

    def choices(row: list[float]) -> set[tuple[int, ...]]:
        best = sorted(row, reverse=True)[:k]
        return {
            each for each in combinations(range(len(row)), k) if sorted((row[i] for i in each), reverse=True) == best
        }

    return bool(choices(stable) & choices(other))


@given(st.data(), st.integers(1, 6), st.integers(1, 6))
def test_the_largest_positions_agree_if_one_choice_fits_both(data: Any, width: int, k: int) -> None:
    pair = [data.draw(arrays(np.float64, (3, width), elements=st.integers(0, 3))) for _ in range(2)]
    expected = [
        k >= width or common_choice(left, right, k)
        for left, right in zip(pair[0].tolist(), pair[1].tolist(), strict=True)
    ]
    assert top_k_agrees(pair[0], pair[1], k).tolist() == expected


def test_the_predicted_class_counts_instead_of_the_scores() -> None:
    stable = np.array([[0.1, 0.7, 0.2], [0.5, 0.4, 0.1], [0.2, nan, 0.9]], np.float32)
    other = np.array([[0.2, 0.5, 0.3], [0.4, 0.5, 0.1], [0.2, 0.1, 0.9]], np.float32)
    assert compared(stable, other, OutputTolerance(top_k=1)).disagreements == 2  # another class, and a missing NaN


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floating_point_numbers_of_each_width_have_a_tolerance(dtype: Any) -> None:
    stable = np.array([[1.0], [100.0], [nan], [inf], [-inf]], dtype)
    other = np.array([[1.005], [103.0], [nan], [inf], [inf]], dtype)
    difference = compared(stable, other)
    assert difference.disagreements == 2
    assert 2.9 < difference.max_abs_error < 3.1


def test_bfloat16_is_compared_as_numbers() -> None:
    stable, other = (float32_to_bfloat16(np.array([[1.0], [2.0], [nan]]) * each) for each in (1.0, 1.0))
    other[1] = float32_to_bfloat16(np.array([2.5]))
    assert compared(stable, other, datatypes=("BF16", "BF16")) == OutputDifference(3, 1, 0.5)
    # Another width is no other kind.
    assert compared(stable, np.array([[1.0], [2.0], [nan]], np.float32), datatypes=("BF16", "FP32")).disagreements == 0


@pytest.mark.parametrize(
    ("stable", "other"),
    [
        (np.array([[2**60], [5]]), np.array([[2**60 + 1], [5]])),
        (np.array([[True], [False]]), np.array([[False], [False]])),
        (np.array([[b"cat"], [b"\xff"]], object), np.array([[b"dog"], [b"\xff"]], object)),
        (np.array([1, 255], np.uint8), np.array([2, 255], np.int64)),
    ],
)
def test_integers_booleans_and_bytes_must_be_equal(stable: Array, other: Array) -> None:
    assert compared(stable, other, OutputTolerance(max_abs_error=9.0)).disagreements == 1
    assert compared(stable, stable.copy()).disagreements == 0


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (None, "does not return"),
        (np.zeros((2, 3), np.int64), "integers (INT64) instead of floating-point numbers (FP32)"),
        (np.zeros((2, 4), np.float32), "shape [2, 4] instead of [2, 3]"),
        (np.zeros((2, 3, 1), np.float32), "shape"),
        (np.full((2, 3), b"", object), "bytes"),
    ],
)
def test_a_change_of_kind_or_shape_is_named_and_no_row_is_compared(other: Array | None, said: str) -> None:
    difference = compared(np.zeros((2, 3), np.float32), other)
    assert said in difference.change
    assert (difference.rows, difference.disagreements) == (0, 0)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [(((-1, -1), (-1, -1)), OutputDifference(2, 2)), (((-1, -1), (-1, 4)), OutputDifference(0, change="shape"))],
)
def test_a_size_that_both_signatures_leave_open_is_a_result(
    declared: tuple[tuple[int, ...], tuple[int, ...]], expected: OutputDifference
) -> None:
    outputs = [ComparedOutput(np.zeros((2, 3 + at), np.float32), "FP32", shape) for at, shape in enumerate(declared)]
    comparison = BatchComparison(2, {"y": outputs[0]}, {"y": outputs[1]}, {})
    assert list(comparison.pieces()) == []
    found = comparison.differences["y"]
    assert found[:3] == expected[:3]
    assert expected.change in found.change
    assert bool(found.change) == bool(expected.change)


def test_padding_is_not_compared_and_may_have_another_length() -> None:
    stable = np.array([[1.0, 2.0, 9.0], [1.0, 2.0, 3.0]], np.float32)
    other = np.array([[1.0, 2.0, 7.0, 7.0], [1.0, 2.0, 4.0, 0.0]], np.float32)
    assert compared(stable, other, lengths=OutputLengths(1, [2, 3])) == OutputDifference(2, 1, 1.0)
    assert compared(stable, other[:, :2], lengths=OutputLengths(1, [2, 3])).change
    assert compared(stable, other, OutputTolerance(top_k=1), OutputLengths(1, [2, 3])).disagreements == 0
    words = np.array([[b"a", b"x"], [b"a", b"b"]], object)
    assert compared(words, np.array([[b"a", b"y"], [b"a", b"b"]], object), lengths=OutputLengths(1, [1, 2]))[1] == 0


def test_a_large_output_is_compared_in_pieces_of_bounded_size() -> None:
    stable = np.zeros((64, PIECE_ELEMENTS // 8), np.float32)
    other = stable.copy()
    other[5], other[63] = 1.0, 2.0
    comparison = BatchComparison(
        64, {"y": ComparedOutput(stable, "FP32")}, {"y": ComparedOutput(other, "FP32")}, {"y": EXACT}
    )
    assert len(list(comparison.pieces())) == 8
    assert comparison.differences == {"y": OutputDifference(64, 2, 2.0)}


def test_an_overflow_is_a_disagreement_and_no_warning() -> None:
    stable, other = np.array([[1.7e308]]), np.array([[-1.7e308]])
    assert compared(stable, other, EXACT).disagreements == 1
