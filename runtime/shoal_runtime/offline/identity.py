"""What a model is, so that a job is never gone on with by another."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal_runtime.fetching import ModelFiles
from shoal_runtime.settings import Settings
from shoal_runtime.unpacking import CHUNK_BYTES
from shoal_schema.declaring import as_json

_OTHERWISE = ("format", "handler", "parameters")


def digest_of(files: ModelFiles) -> str:
    """Return a digest of a model's files, `sha256:` and hex digits, without what Python and editors leave beside."""
    sha256 = hashlib.sha256()
    for path in [files.directory / files.file] if files.file else sorted(_files(files.directory)):
        sha256.update(f"{path.relative_to(files.directory)}\0".encode(errors="surrogateescape"))
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                sha256.update(chunk)
    return f"sha256:{sha256.hexdigest()}"


def _files(folder: Path) -> Iterator[Path]:
    for directory, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [each for each in folders if not each.startswith(".") and each != "__pycache__"]
        yield from (path for name in names if not name.startswith(".") and (path := Path(directory, name)).is_file())


def settings_of(settings: Settings) -> dict[str, Any]:
    """Return what besides its files makes a model answer as it does."""
    model = as_json(settings.model)
    return {
        **{name: model[name] for name in _OTHERWISE if name in model},
        "dtype": settings.runtime.dtype.value,
        "compile": settings.runtime.compile,
    }
