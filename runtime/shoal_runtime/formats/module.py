"""A torch module as a handler: tensors by position, outputs by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shoal_runtime.errors import ForwardFailed, LoadError
from shoal_runtime.handlers.spec import TensorSpec


class ModuleHandler:
    """Call a module with the inputs in the signature's order.

    Args:
        module: takes tensors; returns a tensor, a tuple or list of them, or a dict.
        inputs: names and order of its arguments; those a caller left out are None.
        outputs: names of what it returns, in order.
        dtype: floating-point inputs are cast to it; None leaves them.
    """

    def __init__(
        self,
        module: Callable[..., Any],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._module = module
        self._dtype = dtype

    def forward(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the module."""
        arguments = [batch.get(spec.name) for spec in self.inputs]
        if self._dtype is not None:
            arguments = [
                each.to(self._dtype) if each is not None and each.is_floating_point() else each for each in arguments
            ]
        result = self._module(*arguments)
        if isinstance(result, dict):
            # Nobody can change what an archive returns: the signature picks from it.
            return {spec.name: result[spec.name] for spec in self.outputs if spec.name in result}
        return name_outputs(list(result) if isinstance(result, tuple | list) else [result], self.outputs)


def name_outputs(values: Sequence[torch.Tensor], outputs: Sequence[TensorSpec]) -> dict[str, torch.Tensor]:
    """Return what a module returned by the outputs' names.

    Raises:
        ForwardFailed: it is another number of tensors than the signature says.
    """
    if len(values) != len(outputs):
        raise ForwardFailed(f"the module returned {len(values)} tensors; the signature says {len(outputs)}")
    return {spec.name: value for spec, value in zip(outputs, values, strict=True)}


def require_tensors(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], what: str) -> None:
    """Raise LoadError when the signature is missing or names `BYTES`, unknown to modules."""
    if not inputs or not outputs:
        raise LoadError(f"{what} does not tell its signature: add [[inputs]] and [[outputs]] to model.toml")
    for spec in (*inputs, *outputs):
        if spec.datatype == "BYTES":
            raise LoadError(f"tensor {spec.name} is BYTES, which {what} cannot take: write a handler")


def prepare_module(module: torch.nn.Module, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Return the module on its device, in its type, ready to infer."""
    module = module.to(device=device) if dtype is None else module.to(device=device, dtype=dtype)
    return module.eval()
