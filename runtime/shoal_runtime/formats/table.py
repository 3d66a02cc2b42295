"""Table of model formats: how each format is recognized, and the module that loads it."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal_runtime.formats.source import LoadedModel, ModelSource, find_file, is_transformers
from shoal_schema.resource.model import ModelFormat as Format
from shoal_schema.resource.suffixes import SUFFIXES


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """Properties of one model format."""

    module: str
    """Module beside this one, with `load(source) -> LoadedModel`."""
    holds: Callable[[Path], bool] = lambda _: True
    """Whether a file with its suffix has the format, if several formats share the suffix."""
    torch: bool | None = True
    """Whether it computes with PyTorch; None if its class decides."""
    own_device: bool = False
    """Whether its library without PyTorch chooses the device itself."""
    marks: Callable[[Path], bool] | None = None
    """Whether a directory certainly has this format, regardless of its file names."""
    code: bool = False
    """Whether a class of the user accompanies the files."""
    own_code: bool = False
    """Whether a marked directory imports its own code, including a handler.py."""
    apart: bool = False
    """Whether its code is written to keep rows independent, like a handler's."""
    tried: bool = True
    """Whether warm-up tries it with example rows."""
    extra: str = ""
    """Extra of the package with its dependencies besides PyTorch."""


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""


FORMATS: Final[Mapping[Format, FormatEntry]] = {
    # In the order in which formats are reported when several match.
    Format.HANDLER: FormatEntry("handler", torch=None, code=True, apart=True),
    Format.TORCH_EXPORT: FormatEntry("torch_export"),
    Format.SAFETENSORS: FormatEntry("safetensors", code=True),
    Format.TORCH_SCRIPT: FormatEntry("torch_script"),
    Format.ONNX: FormatEntry("onnx", torch=False, own_device=True),
    Format.SKOPS: FormatEntry("skops", torch=False),
    Format.JOBLIB: FormatEntry("joblib", torch=False),
    Format.XGBOOST: FormatEntry(
        "xgboost",
        lambda path: path.suffix == ".ubj" or ((head := _begins(path)).startswith(b"{") and b"learner" in head),
        torch=False,
        own_device=True,
    ),
    Format.LIGHTGBM: FormatEntry(
        "lightgbm",
        lambda path: path.suffix == ".lgb" or _begins(path).startswith((b"tree\n", b"tree\r\n")),
        torch=False,
        own_device=True,
    ),
    Format.MLFLOW: FormatEntry("mlflow", torch=False, marks=lambda directory: (directory / "MLmodel").is_file()),
    Format.TORCH_SERVE: FormatEntry(
        "torchserve",
        marks=lambda directory: (directory / "MAR-INF" / "MANIFEST.json").is_file(),
        own_code=True,
        apart=True,
        tried=False,
        extra="torchserve",
    ),
    Format.KERAS: FormatEntry("keras", extra="keras"),
    Format.TRANSFORMERS: FormatEntry(
        "transformers", marks=is_transformers, apart=True, tried=False, extra="transformers"
    ),
}


def loader(form: Format) -> Callable[[ModelSource], LoadedModel]:
    """Import a format's module, and return its function `load`."""
    load: Callable[[ModelSource], LoadedModel] = importlib.import_module(
        f"shoal_runtime.formats.{FORMATS[form].module}"
    ).load
    return load


def marked_format(directory: Path) -> Format | None:
    """Return the format whose marker file is in a directory, or None."""
    return next((form for form, entry in FORMATS.items() if entry.marks is not None and entry.marks(directory)), None)


def model_file(source: ModelSource, form: Format) -> Path:
    """Return the only file of a model that has the given format.

    Raises:
        LoadError: there is no such file, or more than one.
    """
    return find_file(source, SUFFIXES.get(form, ()), FORMATS[form].holds)


def formats_of(paths: Iterable[Path]) -> list[Format]:
    """Return the formats that at least one of the files has."""
    given = list(paths)
    return [
        form
        for form, entry in FORMATS.items()
        if any(path.suffix in SUFFIXES.get(form, ()) and entry.holds(path) for path in given)
    ]


def by_suffix(suffix: str) -> Format | None:
    """Return the format of files with a given suffix, or None."""
    return next((form for form, suffixes in SUFFIXES.items() if suffix in suffixes), None)
