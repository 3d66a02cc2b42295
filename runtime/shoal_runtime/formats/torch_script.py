"""TorchScript archives; and pickled modules and weights, for those who opt in.

A TorchScript archive is a program of its own and runs without Python and its unpickler; what its own
operators could do to files and connections is refused (`script_check`). A plain `torch.save` file is a
pickle, which can run any code when it is read. Both are loaded unseen for users who allow pickles by name.
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
from shoal_runtime.formats.source import Loaded, Source, Unreadable, first_bytes, oddity
from shoal_runtime.formats.table import model_file
from shoal_schema.resource.model import ModelFormat as Format

MAX_PICKLE_BYTES: Final = 64 * 2**20
"""Of names and shapes, the weights lie beside it: more than any model's."""


def load(source: Source) -> Loaded:
    """Load the archive onto the device.

    Raises:
        LoadError: it is a pickle and pickles are not allowed, it is broken, or model.toml gives no signature.
    """
    path = model_file(source, Format.TORCH_SCRIPT)
    if is_torch_script(path):
        module = load_script(path, trusted=source.allow_pickle)
    elif not zipfile.is_zipfile(path) and first_bytes(path)[:1] != pickle.PROTO:
        raise Unreadable(path.name, "model of PyTorch", oddity(path) or "it is neither an archive nor a pickle")
    elif source.allow_pickle:
        module = _load_pickle(path, source)
    else:
        raise LoadError(_pickle_refused(path))
    require_tensors(*source.declared(), path.name)
    return loaded_module(module, source, "pytorch_torchscript")


def is_torch_script(path: Path) -> bool:
    """Return whether the file is a TorchScript archive: a zip with code in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.split("/", 1)[-1] for name in archive.namelist()]
    except (zipfile.BadZipFile, OSError):
        return False
    return any(name.startswith("code/") for name in names) and "constants.pkl" in names


def _pickle_refused(path: Path) -> str:
    """Return what a pickle needs; one that names nothing but tensors' own classes is the weights of some module."""
    if _holds_weights_only(path):
        return (
            f"{path.name} holds weights only (a state_dict), and a model is code, too: export the whole module with"
            " torch.export, or save the weights as safetensors and set SHOAL_MODEL_HANDLER (model.handler), or"
            " `handler` in model.toml, to the torch.nn.Module class they belong to. With that class this file will do,"
            " too: it is a pickle, so set SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you trust it"
        )
    return (
        f"{path.name} is a pickle, which can run any code when it is loaded:"
        " save it as safetensors, TorchScript or torch.export, or set"
        " SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you trust it; weights alone (a state_dict) need"
        " SHOAL_MODEL_HANDLER (model.handler), or `handler` in model.toml, too"
    )


def _holds_weights_only(path: Path) -> bool:
    """Return whether the pickle of a `torch.save` archive names tensors only; it is read and not run."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [entry for entry in archive.infolist() if entry.filename.endswith("data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE_BYTES:
            return False
        return not get_unsafe_globals_in_checkpoint(path)
    except Exception:  # whatever is broken in it: it is refused anyway
        return False


def load_script(path: Path, *, trusted: bool) -> torch.nn.Module:
    """Return the archive's module, on the CPU.

    Raises:
        LoadError: it is broken, or, where it is not trusted, it could do more than compute.
    """
    try:
        if not trusted:
            check_script(path)
        with warnings.catch_warnings():
            # torch tells authors to export instead; whoever serves the file cannot.
            warnings.simplefilter("ignore", DeprecationWarning)
            module: torch.nn.Module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, OSError) as error:
        if not is_torch_script(path) and (zipfile.is_zipfile(path) or first_bytes(path)[:1] == pickle.PROTO):
            raise LoadError(
                f"{path.name} is a pickle (torch.save of a module, or of weights), where a TorchScript archive is"
                " wanted: save torch.jit.script(model), or weights with the class that they belong to"
            ) from None
        raise Unreadable(path.name, "TorchScript archive", error) from None
    return module


def _load_pickle(path: Path, source: Source) -> torch.nn.Module:
    try:
        value: Any = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise LoadError(f"{path.name} cannot be unpickled: {type(error).__name__}: {error}") from None
    if isinstance(value, torch.nn.Module):
        return value
    if not isinstance(value, dict):
        raise LoadError(f"{path.name} holds a {type(value).__name__}, neither a module nor weights")
    module = make_module(source, f"{path.name} holds")
    try:
        module.load_state_dict(value)
    except RuntimeError as error:
        raise LoadError(f"{path.name} does not fit {type(module).__name__}: {error}") from None
    return module
