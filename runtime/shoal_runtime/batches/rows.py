"""Adding and taking away whole rows."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def pad_rows(batch: Any, size: int, batch_dims: Mapping[str, int]) -> Any:
    """Return the batch with its first row repeated until it has `size` rows.

    A real row is the one filling that no model chokes on. A plain list is returned as it is: its
    author counts rows.

    Args:
        batch: a tensor, a dict of tensors, or a list.
        size: rows wanted, not less than there are.
        batch_dims: the batch dimension by name, where it is not 0.
    """
    if isinstance(batch, torch.Tensor):
        return _pad(batch, size, 0)
    if isinstance(batch, dict) and all(isinstance(v, torch.Tensor) for v in batch.values()):
        return {name: _pad(tensor, size, batch_dims.get(name, 0)) for name, tensor in batch.items()}
    return batch


def count_rows(batch: Any, batch_dims: Mapping[str, int]) -> int:
    """Return how many rows a batch for `forward` has."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0])
    if isinstance(batch, dict):
        name, value = next(iter(batch.items()))
        return int(value.shape[batch_dims.get(name, 0)]) if hasattr(value, "shape") else len(value)
    return len(batch)


def _pad(tensor: Tensor, size: int, dim: int) -> Tensor:
    missing = size - tensor.shape[dim]
    if missing <= 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat((tensor, tensor.narrow(dim, 0, 1).expand(shape)), dim)
