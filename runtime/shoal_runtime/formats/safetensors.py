"""The safetensors format: weights of a module class that the user provides."""

from safetensors import SafetensorError
from safetensors.torch import load_model

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.module import loaded_module, make_module, require_tensors
from shoal_runtime.formats.source import LoadedModel, ModelSource, UnreadableFile, files_with


def load(source: ModelSource) -> LoadedModel:
    """Create the user's module with `[parameters]`, and load its weights; several files are shards.

    Raises:
        LoadError: there is no class or file, or the weights do not match the module.
        HandlerFailed: the constructor raised an error.
    """
    module = make_module(source, "safetensors hold")
    require_tensors(*source.declared(), "a safetensors model")
    paths = [source.file] if source.file else files_with(source.directory, (".safetensors",))
    if not paths:
        raise LoadError(f"{source.directory} holds no .safetensors file")
    # A tensor is missing if no shard has it.
    missing: list[set[str]] = []
    unexpected: set[str] = set()
    for path in paths:
        try:
            left_out, extra = load_model(module, path, strict=False)
        except (SafetensorError, OSError) as error:
            raise UnreadableFile(path.name, "safetensors file", error) from None
        except RuntimeError as error:
            raise LoadError(f"{path} does not match the module: {error}") from None
        missing.append(set(left_out))
        unexpected.update(extra)
    for what, names in (("do not have", set.intersection(*missing)), ("have unknown", unexpected)):
        if names:
            shown = ", ".join(sorted(names)[:5])
            raise LoadError(f"the weights {what} {shown}{' ...' if len(names) > 5 else ''}")
    return loaded_module(module, source, "pytorch_safetensors")
