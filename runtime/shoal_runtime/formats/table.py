"""Which formats there are: how each is known, and the module with its `load`, imported when it is chosen."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal_runtime.formats.source import Loaded, Source
from shoal_schema.resource.model import ModelFormat as Format


@dataclass(frozen=True, slots=True)
class Entry:
    """One format.

    Args:
        module: beside this one, with `load(source) -> Loaded`.
        suffixes: of its files.
        torch: whether it computes with PyTorch; None: its class says.
        marks: tells a folder that can be nothing else, whatever its files are called.
        code: whether a class of the user's goes with the files.
    """

    module: str
    suffixes: tuple[str, ...] = ()
    torch: bool | None = True
    marks: Callable[[Path], bool] | None = None
    code: bool = False


FORMATS: Final[Mapping[Format, Entry]] = {
    Format.HANDLER: Entry("handler", torch=None, code=True),
    Format.TORCH_EXPORT: Entry("torch_export", (".pt2",)),
    Format.SAFETENSORS: Entry("safetensors", (".safetensors",), code=True),
    Format.TORCH_SCRIPT: Entry("torch_script", (".pt", ".pth", ".ts", ".torchscript")),
}


def loader(form: Format) -> Callable[[Source], Loaded]:
    """Return the format's `load`."""
    load: Callable[[Source], Loaded] = importlib.import_module(f"shoal_runtime.formats.{FORMATS[form].module}").load
    return load


def marked(directory: Path) -> Format | None:
    """Return the format whose mark the folder bears, or None."""
    return next((form for form, entry in FORMATS.items() if entry.marks is not None and entry.marks(directory)), None)


def by_suffix(suffix: str) -> Format | None:
    """Return the format of files with this suffix, or None."""
    return next((form for form, entry in FORMATS.items() if suffix in entry.suffixes), None)
