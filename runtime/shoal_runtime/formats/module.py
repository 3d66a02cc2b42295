"""Torch modules as handlers: inputs are passed by position, outputs named by the signature."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shoal_runtime.errors import ForwardFailed, LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.formats.source import LoadedModel, ModelSource
from shoal_runtime.importing import HandlerFailed
from shoal_runtime.packages import remedy
from shoal_runtime.signature.spec import TensorSpec


class ModuleHandler:
    """Handler that calls a torch module with the signature's inputs by position; an omitted input is None.

    Args:
        module: callable that returns a tensor, a tuple, list or dict of tensors.
        inputs: inputs of the signature.
        outputs: outputs of the signature.
        dtype: type to cast floating-point inputs to, if given.
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
        """Call the module on a batch, and return its results by output name."""
        # Positional, as in the module's own forward.
        arguments = [batch.get(spec.name) for spec in self.inputs]
        if self._dtype is not None:
            arguments = [
                each.to(self._dtype) if each is not None and each.is_floating_point() else each for each in arguments
            ]
        result = self._module(*arguments)
        if isinstance(result, dict):
            # The signature selects, since the outputs of an archive cannot be changed.
            return {spec.name: result[spec.name] for spec in self.outputs if spec.name in result}
        return name_outputs(list(result) if isinstance(result, tuple | list) else [result], self.outputs)


def name_outputs(values: Sequence[torch.Tensor], outputs: Sequence[TensorSpec]) -> dict[str, torch.Tensor]:
    """Return a module's results by output name.

    Raises:
        ForwardFailed: the number of results differs from the signature.
    """
    if len(values) != len(outputs):
        raise ForwardFailed(f"the module returned {len(values)} tensors; the signature declares {len(outputs)}")
    return {spec.name: value for spec, value in zip(outputs, values, strict=True)}


def require_tensors(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], what: str) -> None:
    """Raise LoadError if a signature is missing or contains `BYTES`."""
    if not inputs or not outputs:
        raise LoadError(f"{what} has no signature. Add [[inputs]] and [[outputs]] to model.toml")
    for spec in (*inputs, *outputs):
        if spec.datatype == "BYTES":
            raise LoadError(f"tensor {spec.name} is BYTES, which {what} does not support. Write a handler")


def make_module(source: ModelSource, what: str) -> torch.nn.Module:
    """Create the user's module class with the model's parameters, for weights without code.

    Raises:
        LoadError: no module class is set.
        HandlerFailed: the constructor raised an error.
    """
    if source.handler is None or not issubclass(source.handler, torch.nn.Module):
        raise LoadError(
            f"{what} only weights. Set SHOAL_MODEL_HANDLER (model.handler), or `handler` in model.toml,"
            " to their torch.nn.Module class"
        )
    try:
        module: torch.nn.Module = source.handler(**source.context.parameters)
    except HANDLER_FAULTS as error:
        # The constructor is the user's code, so its traceback is kept.
        name = source.handler.__name__
        raise HandlerFailed(f"{name} failed to load: {describe(error)}{remedy(error)}") from error
    return module


def loaded_module(module: torch.nn.Module, source: ModelSource, platform: str) -> LoadedModel:
    """Move a module to its device and dtype, and return it as a loaded model."""
    context, (inputs, outputs) = source.context, source.declared()
    # Without a requested dtype the module keeps its own.
    module = module.to(device=context.device) if context.dtype is None else module.to(context.device, context.dtype)
    handler = ModuleHandler(module.eval(), inputs, outputs, dtype=context.dtype)
    return LoadedModel(handler, inputs, outputs, platform, graphs=True)
