"""Where rows lie and answers go: a folder of this machine, or of an object store.

What is written is there whole or not at all: here by a name that is changed when all is on disk, in a store by one put.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from shoal_runtime.offline.errors import WrongSettings
from shoal_runtime.offline.folder import FolderPlace
from shoal_runtime.offline.shards import File, split_pattern
from shoal_schema.resource.locations import LocationError, local_path, scheme_of, shown
from shoal_schema.resource.offline import IN_WORDS, STORES


class Place(Protocol):
    """A folder. Every method may raise `JobError`, a sentence."""

    shown: str
    """Its address, without what may be secret."""

    def files(self, pattern: str) -> list[File]:
        """Return the files below that a pattern means, in order of their names."""

    def open(self, file: File, ahead_bytes: int = ...) -> BinaryIO:
        """Return a file's content, as it was listed, which can be sought.

        Args:
            file: one of `files`.
            ahead_bytes: what a store is asked for at a time.
        """

    def read(self, name: str) -> bytes | None:
        """Return what was put under a name, or None."""

    def put(self, name: str, content: bytes) -> None:
        """Put a small file."""

    def put_new(self, name: str, content: bytes) -> bool:
        """Put a small file unless there is one; return whether this call did. Of several at once one does."""

    def writing(self, name: str) -> Any:
        """Return a context that gives a path to write a file at; at its end the file stands under the name."""

    def leave(self) -> None:
        """Remove what this process has begun to write and will not end."""

    def sweep(self) -> None:
        """Remove what processes had begun that have ended since."""


def open_outputs(uri: str, errors_uri: str | None) -> tuple[Place, Place | None]:
    """Return the folder that answers go to, and that of rows that failed, if they have one.

    Raises:
        WrongSettings: one is a file, or no address, or both are one.
    """
    answers, failures = _open_output(uri), _open_output(errors_uri) if errors_uri else None
    if failures and failures.shown.rstrip("/") == answers.shown.rstrip("/"):
        raise WrongSettings(f"{errors_uri} holds the answers: name another folder for the rows that failed (--errors)")
    return answers, failures


def _open_output(uri: str) -> Place:
    place = open_place(uri)
    if isinstance(place, FolderPlace) and place.is_file:
        raise WrongSettings(f"{uri} is a file: name a folder for the answers")
    return place


def open_input(uri: str, written: Sequence[Place]) -> tuple[Place, list[File]]:
    """Return the folder that an input names, and the files in it that are meant; none of those that are ``written``.

    Raises:
        WrongSettings: there are none.
    """
    folder, pattern = split_pattern(uri)
    place = open_place(folder)
    own = tuple(below for each in written if (below := _below(each.shown, place.shown)))
    found = [each for each in place.files(pattern) if not each.path.startswith(own)]
    if not found:
        raise WrongSettings(f"there are no files at {uri}: correct the input")
    return place, found


def _below(inner: str, outer: str) -> str | None:
    """Return how files of one folder are called that lies in another, or None: it does not."""
    outer = f"{outer.rstrip('/')}/"
    return f"{inner.rstrip('/').removeprefix(outer)}/" if inner.startswith(outer) else None


def open_place(uri: str) -> Place:
    """Return the folder, or the one file, at an address.

    Raises:
        WrongSettings: the address is none.
    """
    scheme = scheme_of(uri)
    try:
        if not scheme:
            return FolderPlace(Path(os.path.abspath(uri)))
        if scheme == "file":
            return FolderPlace(Path(os.path.abspath(local_path(uri))))
    except LocationError as error:
        raise WrongSettings(str(error)) from None
    if scheme not in STORES:
        raise WrongSettings(f"{shown(uri)} must be a path, or begin with one of {IN_WORDS}")
    try:
        from shoal_runtime.offline.bucket import open_bucket  # noqa: PLC0415 (its library is an extra)
    except ImportError as error:
        raise WrongSettings(f"{scheme}:// needs {error.name}: pip install 'shoal[{scheme}]'") from None
    return open_bucket(uri)


def plain_file(opened: BinaryIO, file: File) -> Any:
    """Return what a file holds, unpacked where its name says that it is packed."""
    if not file.path.lower().endswith(".gz"):
        return opened
    import gzip  # noqa: PLC0415 (seldom)

    return gzip.GzipFile(fileobj=opened)
