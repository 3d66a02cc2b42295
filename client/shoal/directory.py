"""Temporary directory of a process, and the removal of directories whose process was killed."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "shoal-"
OWNED = "owned"
"""A file in it, locked while the owner lives; the kernel releases the lock when the owner ends."""
MAX_PATH_BYTES = 90
"""Bytes of the parent's path: a unix socket's path may have 108 bytes, with the names below."""


@contextmanager
def own_directory() -> Iterator[str]:
    """Create a temporary directory for the block, and remove directories whose process was killed."""
    # TMPDIR may be too long for the paths of unix sockets.
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > MAX_PATH_BYTES:
        parent = "/tmp"
    with suppress(OSError):
        for left in Path(parent).glob(f"{PREFIX}*"):
            if _is_abandoned(left):
                shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True) as directory,
        open(Path(directory, f"{OWNED}.new"), "wb") as mark,
    ):
        fcntl.flock(mark, fcntl.LOCK_EX)
        # The final name appears only once the file is locked.
        os.rename(mark.name, Path(directory, OWNED))
        yield directory


def _is_abandoned(directory: Path) -> bool:
    """Return whether the process that owned a directory has ended.

    False for a directory of another user.
    """
    try:
        if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
            return False
        with open(os.open(directory / OWNED, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
