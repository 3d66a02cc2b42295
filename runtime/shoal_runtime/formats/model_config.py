"""Parser of `model.toml`, the description in a model directory. All keys are optional."""

import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final

from shoal_runtime.errors import LoadError
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.fields.declaring import NAME, NAME_IN_WORDS
from shoal_schema.resource.model import ModelFormat as Format

FILE_NAME: Final = "model.toml"
MAX_BYTES: Final = 1024 * 1024
_STRINGS: Final = ("name", "format", "handler", "file")
_KEYS: Final = (*_STRINGS, "parameters", "inputs", "outputs")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Contents of model.toml."""

    name: str | None = None
    format: Format = Format.AUTO
    handler: str | None = None
    file: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()


def read_config(directory: Path) -> ModelConfig:
    """Read the model.toml of a directory; without this file, return an empty configuration.

    Raises:
        LoadError: the file is not TOML, not regular or over 1 MiB, or a key is unknown or of the wrong type.
    """
    path = directory / FILE_NAME
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise LoadError(f"{path} is not a regular file")
        # Checked before the file is read into memory.
        if status.st_size > MAX_BYTES:
            raise LoadError(f"{path} is over {MAX_BYTES} bytes")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ModelConfig()
    # ValueError: not TOML, not UTF-8, or an integer of thousands of digits.
    except (ValueError, RecursionError, OSError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from None
    return parse_config(document)


def parse_config(document: Mapping[str, Any]) -> ModelConfig:
    """Check the contents of a model.toml, and return them as a configuration.

    Raises:
        LoadError: a key is unknown or of the wrong type, or a path is outside the directory.
    """
    for key in document:
        if key not in _KEYS:
            raise LoadError(f"{FILE_NAME}: {key} is not a key. The keys are {', '.join(_KEYS)}")
    for key in _STRINGS:
        if not isinstance(document.get(key, ""), str):
            raise LoadError(f"{FILE_NAME}: {key} must be a string")
    if "name" in document and not re.search(NAME, document["name"]):
        raise LoadError(f"{FILE_NAME}: name must be {NAME_IN_WORDS}, not {document['name']!r:.200}")
    handler = document.get("handler", "").partition(":")[0]
    for key, where in (("file", document.get("file", "")), ("handler", handler if handler.endswith(".py") else "")):
        if PurePath(where).is_absolute() or ".." in PurePath(where).parts:
            raise LoadError(f"{FILE_NAME}: {key} must be a file in the model's directory, not {where!r:.200}")
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise LoadError(f"{FILE_NAME}: parameters must be a table")
    form = document.get("format", Format.AUTO)
    if form not in list(Format):
        raise LoadError(f"{FILE_NAME}: format {form!r} is not one of {', '.join(Format)}")
    tensors = {}
    for key in ("inputs", "outputs"):
        tables = document.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise LoadError(f"{FILE_NAME}: {key} must be [[{key}]] tables")
        try:
            tensors[key] = tuple(TensorSpec(**table) for table in tables)
        except (TypeError, ValueError) as error:
            raise LoadError(f"{FILE_NAME}: [[{key}]]: {error}") from None
    return ModelConfig(**{**document, "format": Format(form), **tensors})
