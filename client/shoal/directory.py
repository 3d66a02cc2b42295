"""Temporary directory of a process, which other processes of its user find while it lives."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path

PREFIX = "shoal-"
OWNED = "owned"
"""A file in it, locked while the owner lives; the kernel releases the lock when the owner ends."""
MAX_PATH_BYTES = 90
"""Bytes of the parent's path: a unix socket's path may have 108 bytes, with the names below."""


class _Owner(Enum):
    LIVES = auto()
    ENDED = auto()
    FOREIGN = auto()
    """The directory is another user's, or no process's."""


@contextmanager
def own_directory() -> Iterator[str]:
    """Create a temporary directory for the block, and remove directories whose process was killed."""
    parent = _parent()
    for left in parent.glob(f"{PREFIX}*"):
        if _owner(left) is _Owner.ENDED:
            shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True) as directory,
        open(Path(directory, f"{OWNED}.new"), "wb") as mark,
    ):
        fcntl.flock(mark, fcntl.LOCK_EX)
        # The final name appears only once the file is locked.
        os.rename(mark.name, Path(directory, OWNED))
        yield directory


def directories_in_use() -> list[Path]:
    """Return the directories of this user's running processes."""
    return [each for each in _parent().glob(f"{PREFIX}*") if _owner(each) is _Owner.LIVES]


def _parent() -> Path:
    """Return the user's runtime directory if it is safe to use, otherwise the directory of temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # The specification requires it to be the user's, with no access by others. `sudo` may keep the variable.
    if os.path.isabs(runtime) and _is_private(Path(runtime)) and len(os.fsencode(runtime)) <= MAX_PATH_BYTES:
        return Path(runtime)
    # TMPDIR may be too long for the paths of unix sockets.
    temporary = tempfile.gettempdir()
    return Path(temporary if len(os.fsencode(temporary)) <= MAX_PATH_BYTES else "/tmp")


def _is_private(directory: Path) -> bool:
    """Return whether a directory is this user's, without access by others; False for a link."""
    try:
        state = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077


def _owner(directory: Path) -> _Owner:
    """Return whether the process of a directory lives."""
    if not _is_private(directory):
        return _Owner.FOREIGN
    try:
        with open(os.open(directory / OWNED, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as mark:
            fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that readers do not meet
    except BlockingIOError:
        return _Owner.LIVES
    except OSError:
        return _Owner.FOREIGN
    return _Owner.ENDED
