"""Which formats there are: how each is known, and the module with its `load`, imported when it is chosen."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal_runtime.formats.source import Loaded, Source, find_file, is_transformers
from shoal_schema.resource.model import ModelFormat as Format
from shoal_schema.resource.suffixes import SUFFIXES


@dataclass(frozen=True, slots=True)
class Entry:
    """One format.

    Args:
        module: beside this one, with `load(source) -> Loaded`.
        holds: whether a file of its suffixes is one of them, where others have them too.
        torch: whether it computes with PyTorch; None: its class says.
        marks: tells a folder that can be nothing else, whatever its files are called.
        code: whether a class of the user's goes with the files.
        own_code: whether the code in a folder that bears its mark is its own to import, a handler.py too.
        apart: whether what keeps rows apart was written for that, as a handler was; other graphs only happen to.
        tried: whether warm-up tries it with made-up rows.
        extra: brings what it needs beside PyTorch.
    """

    module: str
    holds: Callable[[Path], bool] = lambda _: True
    torch: bool | None = True
    marks: Callable[[Path], bool] | None = None
    code: bool = False
    own_code: bool = False
    apart: bool = False
    tried: bool = True
    extra: str = ""


def _is_torchserves(directory: Path) -> bool:
    return (directory / "MAR-INF" / "MANIFEST.json").is_file()


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""


def _is_xgboost(path: Path) -> bool:
    head = _begins(path)
    return path.suffix == ".ubj" or (head.startswith(b"{") and b"learner" in head)


def _is_lightgbm(path: Path) -> bool:
    return path.suffix == ".lgb" or _begins(path).startswith((b"tree\n", b"tree\r\n"))


def _is_mlflow(directory: Path) -> bool:
    return (directory / "MLmodel").is_file()


FORMATS: Final[Mapping[Format, Entry]] = {
    Format.HANDLER: Entry("handler", torch=None, code=True, apart=True),
    Format.TORCH_EXPORT: Entry("torch_export"),
    Format.SAFETENSORS: Entry("safetensors", code=True),
    Format.TORCH_SCRIPT: Entry("torch_script"),
    Format.ONNX: Entry("onnx", torch=False),
    Format.SKOPS: Entry("skops", torch=False),
    Format.JOBLIB: Entry("joblib", torch=False),
    Format.XGBOOST: Entry("xgboost", _is_xgboost, torch=False),
    Format.LIGHTGBM: Entry("lightgbm", _is_lightgbm, torch=False),
    Format.MLFLOW: Entry("mlflow", torch=False, marks=_is_mlflow),
    Format.TORCH_SERVE: Entry(
        "torchserve", marks=_is_torchserves, own_code=True, apart=True, tried=False, extra="torchserve"
    ),
    Format.KERAS: Entry("keras", extra="keras"),
    Format.TRANSFORMERS: Entry("transformers", marks=is_transformers, apart=True, tried=False, extra="transformers"),
}


def loader(form: Format) -> Callable[[Source], Loaded]:
    """Return the format's `load`."""
    load: Callable[[Source], Loaded] = importlib.import_module(f"shoal_runtime.formats.{FORMATS[form].module}").load
    return load


def marked(directory: Path) -> Format | None:
    """Return the format whose mark the folder bears, or None."""
    return next((form for form, entry in FORMATS.items() if entry.marks is not None and entry.marks(directory)), None)


def model_file(source: Source, form: Format) -> Path:
    """Return the model's one file of a format.

    Raises:
        LoadError: there is none, or more than one.
    """
    return find_file(source, SUFFIXES.get(form, ()), FORMATS[form].holds)


def found(paths: Iterable[Path]) -> list[Format]:
    """Return the formats that files are of."""
    given = list(paths)
    return [
        form
        for form, entry in FORMATS.items()
        if any(path.suffix in SUFFIXES.get(form, ()) and entry.holds(path) for path in given)
    ]


def by_suffix(suffix: str) -> Format | None:
    """Return the format of files with this suffix, or None."""
    return next((form for form, suffixes in SUFFIXES.items() if suffix in suffixes), None)
