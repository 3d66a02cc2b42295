"""Datatypes of columns whose values are pandas categories."""

from typing import Any

import pytest

from shoal_runtime.formats.columns import category


@pytest.mark.parametrize(
    ("values", "datatype"),
    [
        (["a", "b"], "BYTES"),
        ([True, False], "BOOL"),
        ([1, 2.5], "FP64"),
        ([1, 2**53 - 1], "FP64"),
        ([1, 2**53], "INT64"),
        ([1, -(2**53)], "INT64"),
    ],
)
def test_integers_that_a_double_would_round_are_integers(values: list[Any], datatype: str) -> None:
    assert category("c", values).datatype == datatype


@pytest.mark.parametrize(
    ("values", "datatype"),
    [([1, 2**24 - 1], "FP32"), ([1, 2**24], "FP64"), ([100_000_001, 100_000_002], "FP64"), ([1e8, 2.5], "FP64")],
)
def test_numbers_that_single_precision_would_round_are_doubles(values: list[Any], datatype: str) -> None:
    assert category("c", values, "FP32").datatype == datatype
