"""Tensor library of PyTorch, for tensors on any device."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shoal_runtime.errors import ForwardFailed
from shoal_runtime.signature.spec import TensorSpec
from shoal_runtime.tensors.numpy_tensors import refuse_hidden
from shoal_runtime.tensors.torch_ranges import misfits
from shoal_schema.wire.datatypes import DTYPES, Array

_DTYPES: Final = {
    name: torch.bfloat16 if name == "BF16" else torch.as_tensor(np.empty(0, dtype)).dtype
    for name, dtype in DTYPES.items()
    if name != "BYTES"
}
DATATYPE_OF: Final = {dtype: name for name, dtype in _DTYPES.items()}


class TorchTensors:
    """Implementation of `Library` with PyTorch tensors."""

    holds_text = False

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is a torch tensor."""
        return isinstance(value, Tensor)

    def as_tensor(self, value: Any) -> Tensor:
        """Convert an array or number to a tensor, without a copy where possible.

        Raises:
            ValueError: the array has masked numbers.
        """
        if isinstance(value, Tensor):
            return value
        if isinstance(value, np.ndarray):
            refuse_hidden(value)
            # Four times as fast as as_tensor, which inspects its argument first.
            # from_numpy warns about read-only arrays.
            return torch.from_numpy(value if value.flags.writeable else value.copy())
        return torch.as_tensor(value)

    def from_wire(self, array: Array, datatype: str) -> Tensor:
        """Convert an array to a tensor without a copy; `BF16` bits become bfloat16."""
        if datatype == "BF16":
            return self.as_tensor(array.view(np.int16)).view(torch.bfloat16)
        return self.as_tensor(array)

    def dtype(self, datatype: str) -> torch.dtype:
        """Return the torch type of a datatype."""
        return _DTYPES[datatype]

    def filled(self, shape: Sequence[int], datatype: str, value: float) -> Tensor:
        """Return a tensor filled with one number."""
        return torch.full(tuple(shape), value, dtype=_DTYPES[datatype])

    def filled_like(self, like: Tensor, shape: Sequence[int], value: float) -> Tensor:
        """Return a tensor filled with one number, with the type of `like`."""
        return torch.full(tuple(shape), value, dtype=like.dtype)

    def stack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Stack tensors along a new first dimension."""
        return torch.stack(list(tensors))

    def repeat_first(self, tensor: Tensor, dim: int, count: int) -> Tensor:
        """Extend a tensor along `dim` with `count` copies of its first row."""
        shape = list(tensor.shape)
        shape[dim] = count
        return torch.cat((tensor, tensor.narrow(dim, 0, 1).expand(shape)), dim)

    def is_declared(self, value: object, dtype: Any) -> bool:
        """Return whether a value is a dense tensor of a type."""
        return isinstance(value, Tensor) and value.dtype == dtype and is_dense(value)

    def cast(self, tensor: Tensor, spec: TensorSpec) -> tuple[Tensor, Tensor | None]:
        """Cast a tensor to an output's datatype; also return a mask of the numbers that do not fit."""
        if not is_dense(tensor):
            kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else "sparse"
            raise ForwardFailed(
                f"output {spec.name} is a {kind} tensor, which has no dense numbers. Return a dense tensor"
            )
        wanted = _DTYPES[spec.datatype]
        if tensor.dtype == wanted:
            return tensor, None
        if not torch.can_cast(tensor.dtype, wanted):
            raise ForwardFailed(f"output {spec.name} is {tensor.dtype}; the signature declares {spec.datatype}")
        cast = tensor.to(wanted)
        return cast, misfits(tensor, cast)

    def rows_with(self, where: Tensor, batch_dim: int) -> Tensor:
        """Return for each row whether a mask is set at any position of the row."""
        others = [dim for dim in range(where.ndim) if dim != batch_dim]
        return where.any(others) if others else where

    def first_misfit(self, row: Tensor, spec: TensorSpec) -> int | float:
        """Return the first number of a row that the output's datatype cannot hold."""
        where = misfits(row, row.to(_DTYPES[spec.datatype]))
        assert where is not None
        number: int | float = row.reshape(-1)[int(where.reshape(-1).int().argmax())].item()
        return number

    def host_array(self, tensor: Tensor) -> Array:
        """Return a CPU tensor as a wire array, without a copy; bfloat16 as its bits."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.is_neg():  # a lazy sign, as in `z.conj().imag`
            tensor = tensor.resolve_neg()
        if tensor.dtype == torch.bfloat16:
            return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
        array: Array = tensor.numpy()
        return array

    def readable(self, value: Any) -> Any:
        """Convert a tensor on any device to an array; bfloat16 becomes float32."""
        return _readable_array(value.cpu()) if isinstance(value, Tensor) else value

    def split_tensors(self, result: Any) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
        """Return the tensors in nested dicts and lists, and a function that puts arrays in their place."""
        leaves, structure = pytree.tree_flatten(result)

        def join(fetched: list[Tensor]) -> Any:
            host = iter(fetched)
            arrays = [_readable_array(next(host)) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            return pytree.tree_unflatten(arrays, structure)

        return [leaf for leaf in leaves if isinstance(leaf, Tensor)], join


TORCH: Final = TorchTensors()


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is dense: not sparse, nested or a meta tensor."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta


def _readable_array(tensor: Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.detach().resolve_conj().resolve_neg().numpy())
