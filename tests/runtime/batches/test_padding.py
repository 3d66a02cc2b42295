"""Padding of batches and rows."""

import pytest
import torch

from shoal_runtime.batches.padding import count_rows, padded_length, powers_of_two
from shoal_runtime.signature.spec import PaddingRule
from tests.runtime.fakes import pad_and_stack, pad_rows


@pytest.mark.parametrize(
    ("limit", "sizes"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_sizes_double_up_to_the_limit(limit: int, sizes: tuple[int, ...]) -> None:
    assert powers_of_two(limit) == sizes


def test_a_row_may_be_as_long_as_the_last_bucket() -> None:
    assert padded_length([3, 8, 1], (4, 8)) == 8
    assert padded_length([3, 4], (4, 8)) == 4
    assert padded_length([3, 9], ()) == 9
    with pytest.raises(ValueError, match="longest bucket"):
        padded_length([9], (4, 8))


def test_rows_are_padded_along_the_axis_of_their_rule() -> None:
    rows = [torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5], [6]])]

    batch, mask = pad_and_stack(rows, PaddingRule("x", pad_axis=2, pad_value=-1))

    assert batch.tolist() == [[[1, 2], [3, 4]], [[5, -1], [6, -1]]]
    assert mask.tolist() == [[1, 1], [1, 0]]
    with pytest.raises(ValueError, match="axis 1"):
        pad_and_stack(rows, PaddingRule("x", pad_axis=1))


def test_rows_of_one_dimension_are_padded_along_it() -> None:
    batch, mask = pad_and_stack([torch.tensor([1]), torch.tensor([2, 3])], PaddingRule("x", pad_mask="m", pad_axis=1))

    assert (batch.tolist(), mask.tolist()) == ([[1, 0], [2, 3]], [[1, 0], [1, 1]])


def test_batches_are_padded_with_their_first_row_along_any_dimension() -> None:
    across = {"a": torch.tensor([[1, 2], [3, 4]]), "b": torch.tensor([[7], [8]])}

    assert pad_rows(torch.tensor([1, 2]), 4, {}).tolist() == [1, 2, 1, 1]
    assert pad_rows(torch.tensor([1, 2]), 2, {}).tolist() == [1, 2]
    filled = pad_rows(across, 3, {"a": 1})
    assert filled["a"].tolist() == [[1, 2, 1], [3, 4, 3]]
    assert filled["b"].tolist() == [[7], [8], [7]]
    mixed = {"a": torch.tensor([1]), "b": ["x"]}
    assert pad_rows(mixed, 3, {}) is mixed


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (torch.zeros(3, 2), 3),
        ({"a": torch.zeros(3, 2)}, 2),
        ({"b": torch.zeros(3, 2)}, 3),
        ({"b": ["x", "y"]}, 2),
        (["x"], 1),
    ],
)
def test_a_batchs_rows_are_counted_along_its_batch_dimension(batch: object, rows: int) -> None:
    assert count_rows(batch, {"a": 1}) == rows
