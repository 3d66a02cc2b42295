"""Cache directory of downloaded models.

A directory with a final name is complete. A process writes to a locked directory with a temporary name, which later
processes remove if it is abandoned. `CACHE/origins/` holds a JSON file per URI with the last download and its
validators, so that a restarted process can use it when the server returns 304 or is unreachable.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson

from shoal_runtime.errors import LoadError

STALE_AFTER_S: Final = 24 * 3600
"""Age of abandoned directories where the file system has no locks."""
UNLOCKED_AFTER_S: Final = 60
"""Time between making a directory and locking it."""
PARTIAL_PREFIX: Final = ".partial-"
PARTS_PREFIX: Final = ".parts-"
"""Prefix of directories from which a killed download resumes."""


@dataclass(frozen=True, slots=True)
class DownloadOrigin:
    """Record of the last download of a URI: SHA-256 of the file in hex, and HTTP validators."""

    digest: str
    etag: str | None = None
    last_modified: str | None = None
    file: str | None = None
    """The file's name in a store's listing; None for a tree of files."""

    def conditions(self) -> dict[str, str]:
        """Return request headers with which the server sends the file only if it has changed."""
        headers = {"if-none-match": self.etag, "if-modified-since": self.last_modified}
        return {name: value for name, value in headers.items() if value}


def read_origin(cache_dir: Path, uri: str) -> DownloadOrigin | None:
    """Read the download record of a URI; None if it is missing or unreadable."""
    try:
        return DownloadOrigin(**orjson.loads(_path(cache_dir, uri).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def write_origin(cache_dir: Path, uri: str, origin: DownloadOrigin) -> None:
    """Write the download record of a URI atomically."""
    path = _path(cache_dir, uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A rename replaces the record atomically.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(descriptor, "wb") as file:
        file.write(orjson.dumps(asdict(origin)))
    os.replace(name, path)


def _path(cache_dir: Path, uri: str) -> Path:
    return cache_dir / "origins" / f"{hashlib.sha256(uri.encode()).hexdigest()}.json"


@contextmanager
def temporary(cache_dir: Path) -> Iterator[Path]:
    """Yield a locked temporary directory in the cache; remove it at exit."""
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        remove_stale(cache_dir)
        folder = Path(tempfile.mkdtemp(prefix=PARTIAL_PREFIX, dir=cache_dir))
        # The lock lasts until the descriptor is closed, where the file system has locks.
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise LoadError(f"SHOAL_MODEL_CACHE_DIR cannot be written: {error}") from None
    try:
        yield folder
    except OSError as error:
        raise LoadError(f"the model cannot be stored: {error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def publish_directory(ready: Path, final: Path) -> None:
    """Flush a directory to disk, and rename it to its final name."""
    # Files before their directory, and the directory before its new name.
    for each in (*ready.rglob("*"), ready):
        _sync(each)
    try:
        ready.rename(final)
    except OSError:
        # Another process was first, with the same content.
        if not final.is_dir():
            raise
    _sync(final.parent)


def remove_stale(cache_dir: Path) -> None:
    """Remove temporary directories that are unlocked or a day old, left by killed processes."""
    newest = Path(tempfile.mkdtemp(prefix=PARTIAL_PREFIX, dir=cache_dir))
    # The file system's clock may differ from this machine's.
    now_s = newest.stat().st_mtime
    newest.rmdir()
    for path in cache_dir.glob(".part*-*"):
        with suppress(FileNotFoundError):  # another process has just finished with it
            age_s = now_s - path.stat().st_mtime
            abandoned = age_s > STALE_AFTER_S
            may_be_locked = age_s > UNLOCKED_AFTER_S and path.name.startswith(PARTIAL_PREFIX)
            if may_be_locked and (descriptor := lock_directory(path, fcntl.LOCK_EX | fcntl.LOCK_NB)) is not None:
                os.close(descriptor)
                abandoned = True
            if abandoned:
                shutil.rmtree(path, ignore_errors=True)


def lock_directory(directory: Path, operation: int) -> int | None:
    """Lock a directory until the returned descriptor is closed.

    Args:
        directory: directory to lock.
        operation: operation of `fcntl.flock`.

    Returns:
        The descriptor; None if another process holds the lock, or the file system has no locks.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, operation)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
