"""Several values of a row that become one, among them lists of different lengths."""

from math import nan
from typing import Any

import numpy as np
import pytest

from shoal_proxy.graph.combining import combined
from shoal_proxy.graph.values import SpaceValues, stacked
from shoal_schema.graphs.tensors import Tensor
from shoal_schema.resource.graph import CombineRule
from shoal_schema.wire.datatypes import float32_to_bfloat16

LISTS = Tensor("FP32", (-1,), {})
TEXTS = Tensor("BYTES", (-1,), {})
COUNTS = Tensor("INT64", (-1,), {})


def listed(rows: list[list[Any]], of: list[int] | None = None, kind: Any = np.float32) -> SpaceValues:
    """Return lists of these rows."""
    return SpaceValues(np.array(rows, kind), None if of is None else np.array(of))


SHORT = listed([[4.0]], [1])
LONG = listed([[1.0, 2.0, 3.0], [7.0, 8.0, 9.0]])


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        (CombineRule.FIRST, [[1, 2, 3], [4, nan, nan]]),
        (CombineRule.MEAN, [[1, 2, 3], [5.5, 8, 9]]),
        (CombineRule.MAX, [[1, 2, 3], [7, 8, 9]]),
        (CombineRule.VOTE, [[1, 2, 3], [4, 8, 9]]),
        (CombineRule.STACK, [[[nan, nan, nan], [1, 2, 3]], [[4, nan, nan], [7, 8, 9]]]),
        (CombineRule.CONCAT, [[nan, 1, 2, 3], [4, 7, 8, 9]]),
    ],
)
def test_lists_of_different_lengths(how: CombineRule, wanted: list[Any]) -> None:
    found = combined(how, [SHORT, LONG], [LISTS, LISTS], 2)
    np.testing.assert_array_equal(found.array, np.array(wanted, np.float32))
    assert found.rows is None


@pytest.mark.parametrize("how", [CombineRule.FIRST, CombineRule.MEAN, CombineRule.MAX, CombineRule.VOTE])
def test_a_row_that_has_none_of_them_has_no_value(how: CombineRule) -> None:
    other = listed([[1.0, 2.0]], [2])
    found = combined(how, [SHORT, other], [LISTS, LISTS], 3)
    assert found.rows is not None
    assert found.rows.tolist() == [1, 2]
    np.testing.assert_array_equal(found.array, [[4, nan], [1, 2]])


def test_texts_and_counts_are_filled_up_with_what_they_have() -> None:
    short, long = (listed(rows, [0], object) for rows in ([[b"a"]], [[b"b", b"c"]]))
    assert combined(CombineRule.VOTE, [short, long], [TEXTS, TEXTS], 1).array.tolist() == [[b"a", b"c"]]
    few, many = listed([[3], [1]], None, np.int64), listed([[2, 5]], [1], np.int64)
    assert combined(CombineRule.MAX, [few, many], [COUNTS, COUNTS], 2).array.tolist() == [[3, 0], [2, 5]]
    nothing = SpaceValues(np.zeros((2, 0), np.float32))
    assert combined(CombineRule.MEAN, [nothing, nothing], [LISTS, LISTS], 2).array.shape == (2, 0)


def test_lists_that_are_joined_are_filled_up_within() -> None:
    tensor = Tensor("FP32", (-1, -1), {})
    wide = SpaceValues(np.array([[[1, 2, 3]], [[4, 5, 6]]], np.float32))
    tall = SpaceValues(np.array([[[7], [8]]], np.float32), np.array([1]))
    found = combined(CombineRule.CONCAT, [wide, tall], [tensor, tensor], 2).array
    np.testing.assert_array_equal(
        found,
        [[[1, 2, 3], [nan] * 3, [nan] * 3], [[4, 5, 6], [7, nan, nan], [8, nan, nan]]],
    )
    assert found.flags.c_contiguous


@pytest.mark.parametrize("how", [CombineRule.MEAN, CombineRule.MAX, CombineRule.VOTE])
def test_scheduler_floats_are_the_numbers_that_they_stand_for(how: CombineRule) -> None:
    rows = [[1.0, nan, -0.0, -3.0], [2.0, 1.0, 0.0, -2.0], [2.0, nan, 0.0, -1.0]]
    wide = combined(how, [listed([row]) for row in rows], [LISTS] * 3, 1)
    narrow = [listed([float32_to_bfloat16(np.array(row, np.float32)).tolist()], kind=np.uint16) for row in rows]
    found = combined(how, narrow, [Tensor("BF16", (-1,), {})] * 3, 1)
    assert found.array.dtype == np.uint16
    np.testing.assert_array_equal(found.array, float32_to_bfloat16(wide.array))


def test_rows_of_several_responses_stand_one_after_another() -> None:
    rows = stacked([SHORT.array, LONG.array], LISTS)
    np.testing.assert_array_equal(rows, [[4, nan, nan], [1, 2, 3], [7, 8, 9]])
    assert stacked([LONG.array], LISTS).tolist() == LONG.array.tolist()


def test_the_mean_of_the_largest_numbers_is_one_of_them() -> None:
    largest = SpaceValues(np.array([np.finfo(np.float64).max]))
    scores = Tensor("FP64", (), {})
    assert combined(CombineRule.MEAN, [largest, largest], [scores, scores], 1).array.tolist() == largest.array.tolist()
