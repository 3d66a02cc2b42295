"""State of a model's files, by which several instances recognize that they serve the same model."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePath
from typing import Final

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.fetching import ModelFiles

MAX_FILES: Final = 10_000
"""Files of a model that its state includes."""
READ_BYTES: Final = 1 << 20
"""Largest file whose content is compared; of larger ones, the size and the time of the last change."""
MAX_READ_BYTES: Final = 1 << 26
"""Total size of the files whose content is compared."""


def model_state(files: ModelFiles, cache_dir: Path) -> Mapping[str, str]:
    """Return the state of each of a model's files, by path.

    Hidden files and ``__pycache__`` are left out. Of a file that the URI names, it holds the files with the same stem,
    and the modules and settings beside it.

    Raises:
        LoadError: a file cannot be read.
    """
    if files.directory.is_relative_to(cache_dir):
        # Named by its content. If it is fetched again, only the times differ.
        return {str(files.directory.relative_to(cache_dir)): files.file or ""}
    state: dict[str, str] = {}
    left_bytes = MAX_READ_BYTES
    for path in sorted(islice(_paths(files), MAX_FILES)):
        try:
            found = path.stat()
            if found.st_size > min(READ_BYTES, left_bytes):
                state[str(path.relative_to(files.directory))] = f"{found.st_size} {found.st_mtime_ns}"
                continue
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # a broken link, or removed meanwhile
        except OSError as error:
            raise LoadError(f"{path} cannot be read: {error.strerror}") from None
        left_bytes -= len(content)
        state[str(path.relative_to(files.directory))] = hashlib.sha256(content).hexdigest()
    return state


def state_digest(state: Mapping[str, str]) -> str:
    """Return a digest of the state of a model's files, in hex."""
    digest = hashlib.sha256()
    for path, each in sorted(state.items()):
        digest.update(f"{path}\0{each}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def check_same(state: Mapping[str, str], expected: str | None) -> None:
    """Check a model's files against the digest of those that the first instance has loaded, if there is one.

    Raises:
        LoadError: the files differ.
    """
    if expected is not None and state_digest(state) != expected:
        raise LoadError(
            "the model's files have changed since the first instance loaded them, and one server serves one model."
            " Restore the files, or restart the server to serve the changed model. Files that the model itself writes"
            " into its directory count too: write them elsewhere"
        )


def check_unchanged(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Check that no file changed while the model was loaded.

    Raises:
        LoadError: a file changed or was removed, so that the model may be a mixture.
    """
    for path, each in before.items():
        if after.get(path) != each:
            raise LoadError(f"{path} changed while the model was loaded. Start again when the files are complete")


def _paths(files: ModelFiles) -> Iterator[Path]:
    if files.file is not None:
        named = files.directory / files.file
        for path in named.parent.iterdir():
            beside = path.suffix in (".py", ".toml", ".json") and path.stat().st_size <= READ_BYTES
            if path.is_file() and (path.name.startswith(f"{named.stem}.") or path == named or beside):
                yield path
        return
    for parent, directories, names in os.walk(files.directory, followlinks=True):
        directories[:] = [name for name in directories if not _is_hidden(name)]
        yield from (Path(parent, name) for name in names if not _is_hidden(name))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or PurePath(name).name == "__pycache__"
