"""Identity of a model, so that a job resumes only with the model that began it."""

import hashlib
import os
from pathlib import Path
from typing import Any

from shoal_runtime.settings import Settings
from shoal_runtime.storage.fetching import ModelFiles
from shoal_runtime.storage.unpacking import CHUNK_BYTES
from shoal_schema.fields.declaring import as_json

_MODEL_FIELDS = ("format", "handler", "parameters")


def digest_of(files: ModelFiles) -> str:
    """Return ``sha256:`` and the hex digest of a model's files, without hidden files and bytecode."""
    paths = [files.directory / files.file] if files.file else []
    if not files.file:
        for parent, folders, names in os.walk(files.directory, followlinks=True):
            folders[:] = [each for each in folders if not each.startswith(".") and each != "__pycache__"]
            paths += (path for name in names if not name.startswith(".") and (path := Path(parent, name)).is_file())
    sha256 = hashlib.sha256()
    for path in sorted(paths):
        # Paths are part of the digest: a renamed file may change the model.
        sha256.update(f"{path.relative_to(files.directory)}\0".encode(errors="surrogateescape"))
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                sha256.update(chunk)
    return f"sha256:{sha256.hexdigest()}"


def settings_of(settings: Settings) -> dict[str, Any]:
    """Return the settings that change a model's results."""
    model = as_json(settings.model)
    return {
        **{name: model[name] for name in _MODEL_FIELDS if name in model},
        "dtype": settings.runtime.dtype.value,
        "compile": settings.runtime.compile,
    }
