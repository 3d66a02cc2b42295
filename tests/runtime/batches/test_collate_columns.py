"""Rows that are dicts: each column is stacked separately."""

import torch

from tests.runtime.fakes import collate


def test_a_column_of_texts_does_not_prevent_stacking_others() -> None:
    batch = collate([{"text": "a", "x": torch.tensor([1.0])}, {"text": "b", "x": torch.tensor([2.0])}])

    assert batch["text"] == ["a", "b"]
    assert torch.equal(batch["x"], torch.tensor([[1.0], [2.0]]))
