"""What would be served, told without serving it: `python -m shoal_runtime inspect FILE`."""

import logging
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from shoal_runtime.codecs.metadata import model_metadata
from shoal_runtime.errors import LoadError
from shoal_runtime.fetching import ModelFiles, fetch_model
from shoal_runtime.readiness import Readiness
from shoal_runtime.serving import log_cause
from shoal_runtime.settings import Settings
from shoal_runtime.starting import Started, bring_up

EVENT: Final = re.compile(r"^event=\w+ (?:message=)?")
STATUS: Final = Path("/proc/self/status")
MODULES_DEEP: Final = 2
"""Where a handler keeps its network: in an attribute, or in one of that object's."""

Json = dict[str, Any]


def inspect(settings: Settings) -> Json:
    """Fetch, load and warm the model as if to serve it; return what it is.

    Never raises a LoadError: `refused` says why a model cannot be served, and is None of one that can.
    """
    told: Json = dict.fromkeys(
        ("name", "format", "device", "files", "parameters", "memory_bytes", "device_memory_bytes", "metadata")
    )
    told["refused"] = None
    start_s, readiness = time.monotonic(), Readiness()
    with _warnings() as told["warnings"]:
        try:
            files = fetch_model(settings, readiness)
            told["files"] = _size(files)
            told |= _loaded(bring_up(files, settings, readiness), settings)
        except LoadError as error:
            log_cause(error)
            told["refused"] = str(error)
    return {**told, "seconds": time.monotonic() - start_s}


def _loaded(started: Started, settings: Settings) -> Json:
    model = started.model
    version, measured = settings.model.version, started.measured
    return {
        "name": model.name,
        "format": str(model.format),
        "device": str(model.machine.device),
        "parameters": _parameters(model.handler),
        "memory_bytes": _peak_bytes(),
        "device_memory_bytes": _device_bytes(),
        "metadata": model_metadata(model.name, version, model.platform, model.signature, measured),
    }


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what is warned of meanwhile, instead of logging it; errors are logged."""
    found: list[str] = []
    ours = logging.getLogger("shoal_runtime")
    keep = _Keep(found)
    level, ours.propagate = ours.level, False
    ours.setLevel(logging.WARNING)
    ours.addHandler(keep)
    try:
        yield found
    finally:
        ours.removeHandler(keep)
        ours.setLevel(level)
        ours.propagate = True


class _Keep(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.WARNING:
            logging.getLogger().handle(record)
        else:
            self._found.append(EVENT.sub("", record.getMessage()))


def _size(files: ModelFiles) -> Json:
    """Return how many files there are, and their bytes: of the one that was named, else of the whole folder."""
    paths = [files.directory / files.file] if files.file else _paths(files.directory)
    return {"count": len(paths), "bytes": sum(path.stat().st_size for path in paths)}


def _paths(directory: Path) -> list[Path]:
    walked = ((folder, names) for folder, _, names in os.walk(directory) if "__pycache__" not in folder)
    return [path for folder, names in walked for name in names if (path := Path(folder, name)).is_file()]


def _parameters(handler: Any) -> Json | None:
    """Return how many numbers a handler's torch modules hold, and their bytes; None where it has none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    tensors: dict[int, Any] = {}
    for module in _modules(handler, torch.nn.Module, MODULES_DEEP):
        tensors |= {id(each): each for each in (*module.parameters(), *module.buffers())}
    count = sum(each.numel() for each in tensors.values())
    return {"count": count, "bytes": sum(each.nbytes for each in tensors.values())} if count else None


def _modules(owner: Any, kind: type[Any], depth: int) -> Iterator[Any]:
    if isinstance(owner, kind):
        yield owner
    elif depth:
        for each in list(getattr(owner, "__dict__", {}).values()):
            yield from _modules(each, kind, depth - 1)


def _peak_bytes() -> int:
    """Return the most memory that this process has had; what it was started from does not count, where Linux tells."""
    with suppress(OSError, IndexError, ValueError):
        return int(STATUS.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device_bytes() -> int | None:
    torch = sys.modules.get("torch")
    return torch.cuda.max_memory_reserved() if torch is not None and torch.cuda.is_initialized() else None
