"""Inspection of a model without serving it: `python -m shoal_runtime inspect FILE`."""

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from shoal_runtime.codecs.metadata import model_metadata
from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.serving import log_cause
from shoal_runtime.settings import Settings
from shoal_runtime.startup.parameters import count_parameters
from shoal_runtime.startup.starting import load_and_warm
from shoal_runtime.storage.fetching import fetch_model
from shoal_schema.process.memory import peak_memory_bytes

EVENT: Final = re.compile(r"^event=\w+ (?:message=)?")

Json = dict[str, Any]


def inspect(settings: Settings) -> Json:
    """Fetch, load and warm up the configured model; return its description.

    A LoadError is returned as the message in `refused`, which is None for a model that can be served.
    """
    report: Json = dict.fromkeys(
        ("name", "format", "device", "files", "parameters", "memory_bytes", "device_memory_bytes", "metadata")
    )
    report["refused"] = None
    start_s, readiness = time.monotonic(), Readiness()
    with kept_warnings() as report["warnings"]:
        try:
            files = fetch_model(settings, readiness)
            paths = [files.directory / files.file] if files.file else []
            for parent, _, names in os.walk(files.directory) if not files.file else ():
                if "__pycache__" not in parent:
                    paths += (path for name in names if (path := Path(parent, name)).is_file())
            report["files"] = {"count": len(paths), "bytes": sum(path.stat().st_size for path in paths)}
            started = load_and_warm(files, settings, readiness)
            model, version = started.model, settings.model.version
            report |= {
                "name": model.name,
                "format": str(model.format),
                "device": str(model.machine.device),
                "parameters": count_parameters(model.handler),
                "memory_bytes": peak_memory_bytes(),
                "metadata": model_metadata(
                    model.name, version, model.platform, model.signature, started.measured, precision=started.precision
                ),
            }
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_initialized():
                report["device_memory_bytes"] = torch.cuda.max_memory_reserved()
        except LoadError as error:
            log_cause(error)
            report["refused"] = str(error)
    return {**report, "seconds": time.monotonic() - start_s}


@contextmanager
def kept_warnings() -> Iterator[list[str]]:
    """Collect the runtime's warnings instead of logging them; errors are logged."""
    found: list[str] = []
    ours = logging.getLogger("shoal_runtime")
    keep = _Keep(found)
    # The parent's handlers must not print the warnings too.
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
