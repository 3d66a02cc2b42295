"""The state on disk: a snapshot, followed by every write since.

The first line holds the server's credentials, the revision and all objects; each further line is
one change. A change is written before its request is answered, so whatever a client was told
survives the end of the process, however it came. A last line that was cut short is a change that
nobody was told of, and is dropped.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from shoal_local.apiserver.credentials import Credentials
from shoal_local.apiserver.storage.store import Change, Store, Verb
from shoal_local.objects import key_of

MAX_CHANGES = 20_000
"""Changes after which the file is written anew: it holds each object once again, then."""


class BrokenJournalError(Exception):
    """The file cannot be read; the message says what to do."""


class Journal:
    """Writes a store's changes to a file."""

    def __init__(self, path: Path, credentials: Credentials, store: Store) -> None:
        self._path = path
        self._credentials = credentials
        self._store = store
        self._length = 0
        self._file = self._start()

    def note(self, change: Change) -> None:
        """Append a change; start the file anew when it has grown long."""
        line = {"revision": change.revision, "key": change.key, "verb": str(change.verb), "object": change.object}
        self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._length += 1
        if self._length >= MAX_CHANGES:
            self._file.close()
            self._file = self._start()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _start(self) -> BinaryIO:
        """Write a snapshot beside the old file and put it in its place."""
        new = self._path.with_name(self._path.name + ".new")
        file = os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", 0)
        objects = {key: list(named.values()) for key, named in self._store.objects.items()}
        head = {"credentials": asdict(self._credentials), "revision": self._store.revision, "objects": objects}
        file.write(orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE))
        os.fsync(file.fileno())
        new.replace(self._path)
        self._length = 0
        return file


def restore(path: Path, store: Store) -> Credentials:
    """Bring a store to the state in a file, and return the credentials there.

    Raises BrokenJournalError: the file is none of ours.
    """
    lines = _lines(path)
    try:
        head = next(lines)
        objects = {key: {key_of(obj): obj for obj in listed} for key, listed in head["objects"].items()}
        store.restore(head["revision"], objects)
        for line in lines:
            store.replay(Change(line["revision"], line["key"], Verb(line["verb"]), line["object"], None))
        return Credentials(**head["credentials"])
    except (StopIteration, KeyError, TypeError, ValueError) as error:
        raise BrokenJournalError(
            f"{path} is not a snapshot of this server ({error!r}): name another file, "
            "or remove it to start with an empty cluster"
        ) from None


def _lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for line in file:
            # A line without its end was being written when the process ended.
            if line.endswith(b"\n"):
                yield orjson.loads(line)
