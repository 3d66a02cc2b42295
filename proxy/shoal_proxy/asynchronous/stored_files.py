"""Files of a store that is a directory.

obstore ends a listing at the first entry that it cannot follow or name, such as a loop of symbolic links. A shared
volume may contain entries of other programs, and none of them may hide the requests of a stopped replica.
"""

import os
import re
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Final, NamedTuple

_STAGED: Final = re.compile(r"#[0-9]+\Z")
"""Suffix of files that obstore is writing."""


class StoredFile(NamedTuple):
    """A regular file."""

    name: str
    """Its path below the listed directory."""
    version: str
    """A text that changes with each write."""
    modified_s: float
    """Time of the last write, in seconds since 1970."""


class StoredFiles(NamedTuple):
    """The entries below a directory."""

    files: list[StoredFile]
    skipped: frozenset[str]
    """Paths of entries that are neither a regular file nor a directory, have no valid name, or cannot be read."""


def list_files(directory: Path) -> StoredFiles:
    """Return the files below a directory; none if it does not exist.

    Symbolic links are not followed: the proxy creates none.

    Raises:
        OSError: the directory cannot be read.
    """
    files: list[StoredFile] = []
    skipped: set[str] = set()

    def note(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            return  # deleted meanwhile
        if error.filename == str(directory):
            raise error
        skipped.add(str(error.filename))

    # os.walk does not follow links.
    for place, folders, names in os.walk(directory, onerror=note):
        for path in (Path(place, name) for name in (*folders, *names) if not _STAGED.search(name)):
            try:
                state = path.lstat()
            except OSError as error:
                note(error)
                continue
            below = path.relative_to(directory).as_posix()
            # Surrogates, for bytes that are not UTF-8, and control characters are not printable.
            if S_ISREG(state.st_mode) and below.isprintable():
                version = f"{state.st_ino:x}-{state.st_mtime_ns:x}-{state.st_size:x}"
                files.append(StoredFile(below, version, state.st_mtime))
            elif not S_ISDIR(state.st_mode):
                skipped.add(str(path))
    return StoredFiles(files, frozenset(skipped))
