"""The TorchScript format; also pickled modules and weights, if the user allows pickles.

A TorchScript archive runs without Python; code in it that accesses files or connections is rejected (`script_check`). A
file of `torch.save` is a pickle, which can run any code. If the user allows pickles, both are loaded without checks.
"""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any, Final

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.module import loaded_module, make_module, require_tensors
from shoal_runtime.formats.script_check import check_script
from shoal_runtime.formats.source import LoadedModel, ModelSource, UnreadableFile, first_bytes, unreadable_reason
from shoal_runtime.formats.table import model_file
from shoal_schema.resource.model import ModelFormat as Format

MAX_PICKLE_BYTES: Final = 64 * 2**20
"""Maximum size of names and shapes in a checked pickle; the weights are other records."""


def load(source: ModelSource) -> LoadedModel:
    """Load an archive or pickle onto the device.

    Raises:
        LoadError: a pickle is not allowed, the file is corrupt, or model.toml has no signature.
    """
    path = model_file(source, Format.TORCH_SCRIPT)
    if is_torch_script(path):
        module = load_script(path, trusted=source.allow_pickle)
    # torch.save writes a zip archive, and before version 1.6 a plain pickle.
    elif not zipfile.is_zipfile(path) and first_bytes(path)[:1] != pickle.PROTO:
        raise UnreadableFile(
            path.name, "PyTorch model", unreadable_reason(path) or "it is neither an archive nor a pickle"
        )
    elif source.allow_pickle:
        try:
            value: Any = torch.load(path, map_location="cpu", weights_only=False)
        except Exception as error:
            raise LoadError(f"{path.name} cannot be unpickled: {type(error).__name__}: {error}") from None
        if isinstance(value, dict):  # a state_dict
            module = make_module(source, f"{path.name} holds")
            try:
                module.load_state_dict(value)
            except RuntimeError as error:
                raise LoadError(f"{path.name} does not match {type(module).__name__}: {error}") from None
        elif isinstance(value, torch.nn.Module):
            module = value
        else:
            raise LoadError(f"{path.name} holds a {type(value).__name__}, neither a module nor weights")
    else:
        raise LoadError(_pickle_refused(path))
    require_tensors(*source.declared(), path.name)
    return loaded_module(module, source, "pytorch_torchscript")


def is_torch_script(path: Path) -> bool:
    """Return whether a file is a TorchScript archive: a zip file that holds code."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.split("/", 1)[-1] for name in archive.namelist()]
    except (zipfile.BadZipFile, OSError):
        return False
    return any(name.startswith("code/") for name in names) and "constants.pkl" in names


def _pickle_refused(path: Path) -> str:
    """Return the error message for a pickle, with a remedy; the remedy differs for weights without code."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [entry for entry in archive.infolist() if entry.filename.endswith("data.pkl")]
        small = len(pickles) == 1 and pickles[0].file_size <= MAX_PICKLE_BYTES
        # Reads the names in the pickle without running it.
        weights_only = small and not get_unsafe_globals_in_checkpoint(path)
    except Exception:  # a corrupt file is rejected in any case
        weights_only = False
    if weights_only:
        return (
            f"{path.name} holds only weights (a state_dict), without the code of the model. Export the whole module"
            " with torch.export, or save the weights as safetensors and set SHOAL_MODEL_HANDLER (model.handler), or"
            " `handler` in model.toml, to their torch.nn.Module class. With that class this file can be loaded too:"
            " it is a pickle, so set SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you trust it"
        )
    return (
        f"{path.name} is a pickle, which can run any code when it is loaded."
        " Save it as safetensors, TorchScript or torch.export, or set"
        " SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you trust it; weights (a state_dict) also require"
        " SHOAL_MODEL_HANDLER (model.handler), or `handler` in model.toml"
    )


def load_script(path: Path, *, trusted: bool) -> torch.nn.Module:
    """Load the module of a TorchScript archive on the CPU.

    Raises:
        LoadError: the archive is corrupt, or is not trusted and does more than compute.
    """
    try:
        if not trusted:
            check_script(path)
        with warnings.catch_warnings():
            # The warning asks authors to export instead, which does not help users who serve the file.
            warnings.simplefilter("ignore", DeprecationWarning)
            module: torch.nn.Module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, OSError) as error:
        if not is_torch_script(path) and (zipfile.is_zipfile(path) or first_bytes(path)[:1] == pickle.PROTO):
            raise LoadError(
                f"{path.name} is a pickle (torch.save of a module, or of weights), not a TorchScript archive."
                " Save torch.jit.script(model), or weights with their module class"
            ) from None
        raise UnreadableFile(path.name, "TorchScript archive", error) from None
    return module
