"""A torch module as a handler: tensors by position, outputs by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shoal_runtime.errors import ForwardFailed, LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe, remedy
from shoal_runtime.formats.source import Loaded, Source
from shoal_runtime.handlers.spec import TensorSpec
from shoal_runtime.importing import HandlerFailed


class ModuleHandler:
    """Call a module with the inputs in the signature's order, None for those a caller left out.

    It returns a tensor, a tuple or list of them, or a dict. Floating-point inputs are cast to ``dtype``, if given.
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


def make_module(source: Source, what: str) -> torch.nn.Module:
    """Return the module that weights belong to: its class, called with the model's parameters.

    Raises:
        LoadError: nobody named the class.
        HandlerFailed: the class raised.
    """
    if source.handler is None or not issubclass(source.handler, torch.nn.Module):
        raise LoadError(
            f"{what} weights only: set SHOAL_MODEL_HANDLER (model.handler), or `handler` in model.toml,"
            " to the torch.nn.Module class they belong to"
        )
    try:
        module: torch.nn.Module = source.handler(**source.context.parameters)
    except HANDLER_FAULTS as error:
        name = source.handler.__name__
        raise HandlerFailed(f"{name} failed to load: {describe(error)}{remedy(error)}") from error
    return module


def loaded_module(module: torch.nn.Module, source: Source, platform: str) -> Loaded:
    """Return the module on its device, in its type, ready to infer."""
    context, (inputs, outputs) = source.context, source.declared()
    module = module.to(device=context.device) if context.dtype is None else module.to(context.device, context.dtype)
    handler = ModuleHandler(module.eval(), inputs, outputs, dtype=context.dtype)
    return Loaded(handler, inputs, outputs, platform, graphs=True)
