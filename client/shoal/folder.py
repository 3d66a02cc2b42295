"""The folder of one ``shoal serve``, and what those left behind that were killed."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "shoal-"
OWNED = "owned"
"""Locked as long as the owner lives: the kernel unlocks it however he ends."""
# The kernel's limit of a unix socket's path is 108 bytes; the socket's own name takes some.
MAX_PATH_BYTES = 90


@contextmanager
def own_folder() -> Iterator[str]:
    """Make a folder for as long as this lasts; remove those whose owner was killed."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > MAX_PATH_BYTES:
        parent = "/tmp"
    _sweep(Path(parent))
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True) as folder,
        open(Path(folder, f"{OWNED}.new"), "wb") as mark,
    ):
        fcntl.flock(mark, fcntl.LOCK_EX)
        # Not seen by others before it is locked.
        os.rename(mark.name, Path(folder, OWNED))
        yield folder


def _sweep(parent: Path) -> None:
    """Remove the folders whose lock is free; never another user's, or one without our mark."""
    with suppress(OSError):
        for folder in parent.glob(f"{PREFIX}*"):
            if _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return False
        with open(os.open(folder / OWNED, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
