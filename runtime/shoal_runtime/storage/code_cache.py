"""Directories in the cache for compiled code: kernels of torch.compile, engines of TensorRT.

Libraries run the content of these directories. Only the runtime's own user may have made them and may write to them.
"""

import hashlib
import logging
import os
import stat
from itertools import islice
from pathlib import Path
from typing import Final

from shoal_runtime.storage.fetching import ModelFiles

OWN: Final = 0o700
OTHERS: Final = 0o077
"""Permissions of other users, which these directories must not have."""
MAX_FILES: Final = 10_000
"""Files of a model that its digest includes."""

logger = logging.getLogger(__name__)


def code_directory(cache_dir: Path, kind: str, *key: str) -> Path | None:
    """Return the directory for compiled code of one kind and key.

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
        for each in (directory.parent, directory):
            if not each.is_symlink():
                each.mkdir(mode=OWN, exist_ok=True)
            found = each.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & OTHERS:
                raise PermissionError(f"{each} must be a directory that only the runtime's user can read and write")
    except OSError as error:
        logger.warning("event=code_cache_off kind=%s reason=%s", kind, error)
        return None
    return directory


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
