"""Weights in safetensors, with the module class they belong to."""

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.module import loaded_module, make_module, require_tensors
from shoal_runtime.formats.source import Loaded, Source, Unreadable, files_with


def load(source: Source) -> Loaded:
    """Make the module with `[parameters]` and give it the weights; several files count as shards.

    Raises:
        LoadError: no class, no file, or weights that are not the module's.
        HandlerFailed: the class raised.
    """
    module = make_module(source, "safetensors hold")
    require_tensors(*source.declared(), "a safetensors model")
    _load_weights(module, source)
    return loaded_module(module, source, "pytorch_safetensors")


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
            raise Unreadable(path.name, "safetensors file", error) from None
        except RuntimeError as error:
            raise LoadError(f"{path} does not fit the module: {error}") from None
        missing.append(set(left_out))
        unexpected.update(extra)
    for what, names in (("lack", set.intersection(*missing)), ("have unknown", unexpected)):
        if names:
            shown = ", ".join(sorted(names)[:5])
            raise LoadError(f"the weights {what} {shown}{' ...' if len(names) > 5 else ''}")
