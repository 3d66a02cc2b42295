"""The folder of downloads: what bears a final name is whole, and what a killed process leaves is swept by the next.

Who writes holds a lock on a folder of a temporary name. `CACHE/origins/` remembers, in one small JSON file a URI, which
file it gave and how to ask whether it has changed: a restarted process, or one that starts behind an init container,
uses what is there when the server says 304, or when it cannot be reached.
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
"""Where the file system knows no locks."""
UNLOCKED_AFTER_S: Final = 60
"""Who has made a folder is given this long to lock it."""
PARTIAL_PREFIX: Final = ".partial-"
PARTS_PREFIX: Final = ".parts-"
"""Of folders from which a killed download goes on."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The last download of one URI: the file's SHA-256 in hex, and the validators that came with it."""

    digest: str
    etag: str | None = None
    last_modified: str | None = None
    file: str | None = None
    """Its name, where a store lists it; None for a tree of files."""

    def conditions(self) -> dict[str, str]:
        """Return the request headers that ask for the file only if it has changed."""
        known = {"if-none-match": self.etag, "if-modified-since": self.last_modified}
        return {name: value for name, value in known.items() if value}


def recall(cache_dir: Path, uri: str) -> Origin | None:
    """Return what is known of ``uri``; what cannot be read is as good as nothing."""
    try:
        return Origin(**orjson.loads(_path(cache_dir, uri).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def remember(cache_dir: Path, uri: str, origin: Origin) -> None:
    """Write it down, whole or not at all."""
    path = _path(cache_dir, uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(descriptor, "wb") as file:
        file.write(orjson.dumps(asdict(origin)))
    os.replace(name, path)


def _path(cache_dir: Path, uri: str) -> Path:
    return cache_dir / "origins" / f"{hashlib.sha256(uri.encode()).hexdigest()}.json"


@contextmanager
def temporary(cache_dir: Path) -> Iterator[Path]:
    """Yield a folder beside the final ones, which is locked while it is there."""
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        sweep(cache_dir)
        folder = Path(tempfile.mkdtemp(prefix=PARTIAL_PREFIX, dir=cache_dir))
        # Held until it is closed, where the file system knows locks.
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


def settle(ready: Path, final: Path) -> None:
    """Give a folder its final name, once all that is in it is on the disk."""
    for each in (*ready.rglob("*"), ready):
        _sync(each)
    try:
        ready.rename(final)
    except OSError:
        # Another process was first, with the same content.
        if not final.is_dir():
            raise
    _sync(final.parent)


def sweep(cache_dir: Path) -> None:
    """Remove what killed processes left behind: what nobody holds a lock on, or is a day old."""
    newest = Path(tempfile.mkdtemp(prefix=PARTIAL_PREFIX, dir=cache_dir))
    # The file system's own clock, which may not be this machine's.
    now_s = newest.stat().st_mtime
    newest.rmdir()
    for path in cache_dir.glob(".part*-*"):
        with suppress(FileNotFoundError):  # another process has just finished with it
            age_s = now_s - path.stat().st_mtime
            left = age_s > UNLOCKED_AFTER_S and path.name.startswith(PARTIAL_PREFIX)
            if age_s > STALE_AFTER_S or (left and _is_unlocked(path)):
                shutil.rmtree(path, ignore_errors=True)


def _is_unlocked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # somebody holds it, or nobody can
    else:
        return True
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
