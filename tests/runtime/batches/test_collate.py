import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime import PaddingRule
from shoal_runtime.batches.padding import count_rows, next_size, powers_of_two
from tests.runtime.fakes import collate, misfits, pad_and_stack, pad_rows

IDS = PaddingRule("ids", pad_axis=1, pad_value=9, pad_buckets=[4, 8], pad_mask="mask")


def test_dicts_become_a_dict_of_tensors() -> None:
    batch = collate([{"a": torch.ones(2), "n": 1, "t": "x"}, {"a": np.zeros(2), "n": 2, "t": "y"}])

    assert batch["a"].tolist() == [[1, 1], [0, 0]]
    assert batch["n"].tolist() == [1, 2]
    assert batch["t"] == ["x", "y"]


def test_tensors_become_one_tensor() -> None:
    assert collate([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]


def test_read_only_arrays_are_accepted_without_a_warning() -> None:
    row = np.frombuffer(b"\1\2", dtype=np.uint8)

    assert collate([row]).tolist() == [[1, 2]]


def test_anything_else_stays_a_list() -> None:
    assert collate(["a", ("b",)]) == ["a", ("b",)]


def test_rows_of_different_shapes_require_a_rule() -> None:
    with pytest.raises(ValueError, match=r"shapes \[\[1\], \[2\]\]"):
        collate([torch.ones(1), torch.ones(2)])


def test_ragged_rows_are_padded_by_their_rule() -> None:
    batch = collate([{"ids": torch.tensor([1, 2, 3])}, {"ids": torch.tensor([4])}], [IDS])

    assert batch["ids"].tolist() == [[1, 2, 3, 9], [4, 9, 9, 9]]
    assert batch["mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_a_mask_from_the_handler_is_kept() -> None:
    row = {"ids": torch.tensor([1, 2, 3, 4]), "mask": torch.tensor([1, 0, 0, 0])}

    assert collate([row], [IDS])["mask"].tolist() == [[1, 0, 0, 0]]


def test_a_row_longer_than_the_last_bucket_is_rejected() -> None:
    with pytest.raises(ValueError, match="longest bucket"):
        collate([{"ids": torch.zeros(9)}], [IDS])


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=5))
def test_padding_keeps_every_row(rows: list[list[int]]) -> None:
    rule = PaddingRule("ids", pad_axis=1, pad_value=-1)

    batch, mask = pad_and_stack([torch.tensor(row, dtype=torch.int64) for row in rows], rule)

    assert batch.shape == (len(rows), max(map(len, rows)))
    assert [b[m.bool()].tolist() for b, m in zip(batch, mask, strict=True)] == rows
    assert (batch[~mask.bool()] == -1).all()


def test_only_the_row_of_another_shape_is_a_misfit() -> None:
    rows = [torch.ones(2), torch.ones(3), torch.ones(2)]

    found = misfits(rows)

    assert list(found) == [1]
    assert "float32[3]" in found[1]


def test_rows_that_a_rule_pads_are_no_misfits() -> None:
    assert misfits([{"ids": torch.ones(2)}, {"ids": torch.ones(3)}], [IDS]) == {}
    assert list(misfits([{"ids": torch.ones(2)}, {"ids": torch.ones(2)}, {"q": 1}], [IDS])) == [2]


@pytest.mark.parametrize("values", [(2**24 + 1, 0.5), (True, 5), (np.int8(1), 1), (torch.tensor(1), 0.5)])
def test_numbers_of_different_types_are_rejected(values: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"v as \w+ in one row"):
        collate([{"v": value} for value in values])


def test_missing_rows_repeat_the_first_one() -> None:
    batch = {"x": torch.tensor([[1.0], [2.0]]), "t": torch.tensor([[3.0, 4.0]])}

    padded = pad_rows(batch, 4, {"t": 1})

    assert padded["x"].flatten().tolist() == [1, 2, 1, 1]
    assert padded["t"].tolist() == [[3, 4, 3, 3]]
    assert count_rows(padded, {"t": 1}) == 4
    assert pad_rows(torch.ones(1, 2), 2, {}).shape == (2, 2)


def test_a_list_is_not_padded() -> None:
    assert pad_rows(["a"], 4, {}) == ["a"]
    assert count_rows(["a"], {}) == 1
    assert count_rows({"t": ["a", "b"]}, {}) == 2


@pytest.mark.parametrize(
    ("count", "sizes", "expected"),
    [(1, (), 1), (3, (2, 4), 4), (4, (2, 4), 4), (5, (2, 4), 5)],
)
def test_the_next_size_holds_the_count(count: int, sizes: tuple[int, ...], expected: int) -> None:
    assert next_size(count, sizes) == expected


@given(st.integers(1, 5000))
def test_powers_of_two_end_at_the_limit(limit: int) -> None:
    sizes = powers_of_two(limit)

    assert sizes[0] == 1
    assert sizes[-1] == limit
    assert all(low < high <= 2 * low for low, high in itertools.pairwise(sizes))
