"""Weights in safetensors, with the module class they belong to."""

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe, remedy
from shoal_runtime.formats.module import ModuleHandler, prepare_module, require_tensors
from shoal_runtime.formats.source import Loaded, Source, files_with
from shoal_runtime.importing import HandlerFailed


def load(source: Source) -> Loaded:
    """Make the module with `[parameters]` and give it the weights; several files count as shards.

    Raises:
        LoadError: no class, no file, or weights that are not the module's.
        HandlerFailed: the class raised.
    """
    if source.handler is None or not issubclass(source.handler, torch.nn.Module):
        raise LoadError(
            "safetensors hold weights only: set SHOAL_MODEL_HANDLER, or `handler` in model.toml,"
            " to the torch.nn.Module class they belong to"
        )
    inputs, outputs = source.declared()
    require_tensors(inputs, outputs, "a safetensors model")
    module = make_module(source)
    _load_weights(module, source)
    module = prepare_module(module, source.context.device, source.context.dtype)
    handler = ModuleHandler(module, inputs, outputs, dtype=source.context.dtype)
    return Loaded(handler, inputs, outputs, platform="pytorch_safetensors", graphs=True)


def make_module(source: Source) -> torch.nn.Module:
    """Return the module class called with the model's parameters."""
    assert source.handler is not None
    try:
        module: torch.nn.Module = source.handler(**source.context.parameters)
    except HANDLER_FAULTS as error:
        name = source.handler.__name__
        raise HandlerFailed(f"{name} failed to load: {describe(error)}{remedy(error)}") from error
    return module


def _load_weights(module: torch.nn.Module, source: Source) -> None:
    paths = [source.file] if source.file else files_with(source.directory, (".safetensors",))
    if not paths:
        raise LoadError(f"{source.directory} holds no .safetensors file")
    missing: list[set[str]] = []
    unexpected: set[str] = set()
    for path in paths:
        try:
            left_out, extra = load_model(module, path, strict=False)
        except (SafetensorError, OSError) as error:
            raise LoadError(f"{path} is not a readable safetensors file: {error}") from None
        except RuntimeError as error:
            raise LoadError(f"{path} does not fit the module: {error}") from None
        missing.append(set(left_out))
        unexpected.update(extra)
    for what, names in (("lack", set.intersection(*missing)), ("have unknown", unexpected)):
        if names:
            shown = ", ".join(sorted(names)[:5])
            raise LoadError(f"the weights {what} {shown}{' ...' if len(names) > 5 else ''}")
