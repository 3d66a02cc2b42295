"""Directories in the cache for compiled code: kernels of torch.compile, engines of TensorRT.

Libraries run the content of these directories. Only the runtime's own user may have made them and may write to them.
Each process locks the directory that it uses. The least recently used ones are removed when a kind exceeds `MAX_BYTES`.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import stat
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from shoal_runtime.storage.cache import lock_directory
from shoal_runtime.storage.fetching import ModelFiles

OWN: Final = 0o700
OTHERS: Final = 0o077
"""Permissions of other users, which these directories must not have."""
MAX_BYTES: Final = 10 << 30
"""Size of all directories of one kind, without those in use."""
MAX_FILES: Final = 10_000
"""Files of a model that its digest includes."""

logger = logging.getLogger(__name__)


def code_directory(cache_dir: Path, kind: str, *key: str) -> Path | None:
    """Return the directory for compiled code of one kind and key, locked until this process ends.

    Args:
        cache_dir: cache of the runtime.
        kind: name of the library's directory in the cache.
        key: what the code depends on, such as versions, the device and the digest of the model.

    Returns:
        The directory; None with a warning if another user could have written to it, or it cannot be made.
    """
    name = hashlib.sha256("\0".join(key).encode()).hexdigest()
    directory = cache_dir / kind / name
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        _make_private(directory.parent)
        with ExitStack() as stack:
            # No other process removes the directory before it is locked.
            if (descriptor := lock_directory(directory.parent, fcntl.LOCK_EX)) is not None:
                stack.callback(os.close, descriptor)
            _make_private(directory)
            os.utime(directory)
            # This descriptor is never closed: the lock ends with the process.
            lock_directory(directory, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):  # another process replaces its files; the next one prunes
                prune(directory.parent, MAX_BYTES)
    except OSError as error:
        logger.warning("event=code_cache_off kind=%s reason=%s", kind, error)
        return None
    return directory


def _make_private(directory: Path) -> None:
    if not directory.is_symlink():
        directory.mkdir(mode=OWN, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & OTHERS:
        raise PermissionError(f"{directory} must be a directory that only the runtime's user can read and write")


def prune(parent: Path, max_bytes: int) -> None:
    """Remove directories of compiled code, the least recently used first, until the others have at most a size.

    Directories that a process has locked are kept.
    """
    by_age = sorted(
        (entry.stat().st_mtime, entry.path) for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)
    )
    sizes = {path: sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file()) for _, path in by_age}
    excess_bytes = sum(sizes.values()) - max_bytes
    for path, size_bytes in sizes.items():
        if excess_bytes <= 0:
            return
        if (lock := lock_directory(Path(path), fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
            continue
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        excess_bytes -= size_bytes
        logger.info("event=compiled_code_removed directory=%s size_bytes=%d", path, size_bytes)


def files_digest(files: ModelFiles) -> str:
    """Return a digest of the names, sizes and times of a model's files, in hex.

    The contents are not read, as weights may have many gigabytes.
    """
    if files.file is not None:
        paths = [files.directory / files.file]
    else:
        found = (path for path in files.directory.rglob("*") if "__pycache__" not in path.parts and path.is_file())
        paths = sorted(islice(found, MAX_FILES))
    digest = hashlib.sha256()
    for path in paths:
        state = path.stat()
        digest.update(f"{path.relative_to(files.directory)}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()
