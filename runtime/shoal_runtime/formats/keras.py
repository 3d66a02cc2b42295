"""The Keras 3 format (.keras), run on torch and loaded in Keras' safe mode."""

import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import exception_message
from shoal_runtime.formats.module import ModuleHandler, require_tensors
from shoal_runtime.formats.source import (
    LoadedModel,
    ModelSource,
    UnreadableFile,
    UntrustedFile,
    check_static_batch,
    unreadable_reason,
)
from shoal_runtime.formats.table import model_file
from shoal_runtime.formats.tabular import imported
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_runtime.tensors.torch_tensors import DATATYPE_OF
from shoal_schema.resource.model import ModelFormat as Format

UNSAFE: Final = ("safe_mode", "unsafe")
"""Common words of Keras' errors about files that could run code."""


def load(source: ModelSource) -> LoadedModel:
    """Load a Keras model onto the device.

    Raises:
        LoadError: the file is corrupt, holds code, or uses classes that are not Keras' own.
    """
    path = model_file(source, Format.KERAS)
    if source.context.dtype is not None:
        raise LoadError("a Keras model keeps the dtype of its file. Leave SHOAL_RUNTIME_DTYPE at auto")
    # Keras reads both once, when it is imported.
    os.environ["KERAS_BACKEND"], os.environ["KERAS_TORCH_DEVICE"] = "torch", str(source.context.device)
    keras = imported("keras", "keras")
    if keras.backend.backend() != "torch":
        raise LoadError(f"Keras was imported with {keras.backend.backend()} before. Set KERAS_BACKEND=torch")
    model = _read(keras, path, trusted=source.allow_pickle)
    # A stateful layer continues from the previous call, so one client's request would affect another's result.
    if kept := [layer.name for layer in model._flatten_layers() if getattr(layer, "stateful", False)]:
        raise LoadError(
            f"{path.name} keeps state between calls ({kept[-1]} is stateful), so results would depend on other"
            " clients' requests. Build it with stateful=False, set the weights, and save it again"
        )
    # Keras nests tensors; their flat order is that of the signature.
    try:
        # A Sequential model wraps its only input in a list.
        alone = isinstance(model, keras.Sequential) and model.inputs
        taken, given = (model.inputs[0], model.outputs[0]) if alone else (model.input, model.output)
    except (AttributeError, ValueError):
        raise LoadError(f"{path.name} has no signature. Begin it with keras.Input(...) and save it again") from None
    inputs = source.inputs or _specs(keras.tree.flatten(taken), None)
    outputs = source.outputs or _specs(keras.tree.flatten(given), _output_names(keras, model, given))
    require_tensors(inputs, outputs, path.name)
    check_static_batch(
        source, path.name, inputs, "give keras.Input a shape, not a batch_shape or batch_size, and save it again"
    )

    def run(*tensors: torch.Tensor) -> Any:
        made = model(keras.tree.pack_sequence_as(taken, list(tensors)), training=False)
        return made if _is_flat(keras, made) else keras.tree.flatten(made)

    return LoadedModel(ModuleHandler(run, inputs, outputs), inputs, outputs, "keras")


def _read(keras: Any, path: Path, *, trusted: bool) -> Any:
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=not trusted)
    except Exception as error:  # h5py, zipfile and the constructors of layers raise types of their own
        text = exception_message(error)
        if any(word in text for word in UNSAFE):
            raise UntrustedFile(path.name, "code (a lambda, or other code that Keras' safe mode rejects)") from None
        if found := re.search(r"Could not locate (?:class|function|object) '(.*?)'", text):
            raise LoadError(
                f"{path.name} uses {found[1]}, which is custom code, and Keras files cannot contain code. Write a "
                "handler that imports it and loads the file"
            ) from None
        # For a file that is not an archive, Keras reports that there is no file.
        why = unreadable_reason(path) or (text if zipfile.is_zipfile(path) else "it is not a complete zip archive")
        raise UnreadableFile(path.name, "Keras model", why or type(error).__name__) from None
    return model.eval()


def _is_flat(keras: Any, made: Any) -> bool:
    """Return whether a model's result is a dict whose values are all tensors."""
    return isinstance(made, dict) and len(keras.tree.flatten(made)) == len(made)


def _output_names(keras: Any, model: Any, given: Any) -> list[str]:
    if _is_flat(keras, given):
        return sorted(map(str, given))
    names = [str(name) for name in getattr(model, "output_names", (model.layers[-1].name,))]
    return names if len(set(names)) == len(names) else [f"output_{index}" for index in range(len(names))]


def _specs(tensors: Sequence[Any], names: Sequence[str] | None) -> list[TensorSpec]:
    specs = []
    for tensor, name in zip(tensors, names or [tensor.name for tensor in tensors], strict=True):
        datatype = DATATYPE_OF.get(getattr(torch, str(tensor.dtype), None))  # type: ignore[arg-type]
        if datatype is None or not tensor.shape:
            raise LoadError(f"{name} of the model is {tensor.dtype} with {len(tensor.shape)} dimensions")
        specs.append(TensorSpec(name, datatype, [ANY if size is None else size for size in tensor.shape]))
    return specs
