"""The API server's state on disk: a snapshot, then every later change.

The first line holds the server's credentials, the revision and all objects. Each further line is one change, written
before its request gets a response, so every acknowledged change survives the end of the process. An incomplete last
line is a change without a response, and is dropped.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import orjson

from shoal_local.apiserver.credentials import Credentials
from shoal_local.apiserver.storage.store import Change, Store, Verb
from shoal_local.objects import key_of

MAX_CHANGES = 20_000
"""After this number of changes a new snapshot replaces the file, so that it holds each object once."""


class BrokenJournalError(Exception):
    """The journal file cannot be read; the message names the remedy."""


class Journal:
    """A file to which the changes of a store are appended."""

    def __init__(self, path: Path, credentials: Credentials, store: Store) -> None:
        self._path = path
        self._credentials = credentials
        self._store = store
        self._length = 0
        self._file = self._start()

    def record(self, change: Change) -> None:
        """Append a change; write a new snapshot after `MAX_CHANGES`."""
        line = {"revision": change.revision, "key": change.key, "verb": str(change.verb), "object": change.object}
        # Not synced: it survives a kill of the process, not a power failure.
        self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._length += 1
        if self._length >= MAX_CHANGES:
            self._file.close()
            self._file = self._start()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _start(self) -> BinaryIO:
        """Replace the journal with a new snapshot; return the open file."""
        new = self._path.with_name(self._path.name + ".new")
        # Readable by its owner only, and unbuffered: each change is one write.
        file = os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", 0)
        objects = {key: list(named.values()) for key, named in self._store.objects.items()}
        head = {"credentials": asdict(self._credentials), "revision": self._store.revision, "objects": objects}
        file.write(orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE))
        # The rename must not become durable before the content.
        os.fsync(file.fileno())
        new.replace(self._path)
        self._length = 0
        return file


def restore(path: Path, store: Store) -> Credentials:
    """Restore a store from its journal; return the server's credentials.

    Raises BrokenJournalError: the file is not a journal of this server.
    """
    # A line without a newline was cut off by the end of the process.
    with path.open("rb") as file:
        lines = (orjson.loads(line) for line in file if line.endswith(b"\n"))
        try:
            head = next(lines)
            objects = {key: {key_of(obj): obj for obj in listed} for key, listed in head["objects"].items()}
            store.restore(head["revision"], objects)
            for line in lines:
                store.replay(Change(line["revision"], line["key"], Verb(line["verb"]), line["object"], None))
            return Credentials(**head["credentials"])
        except (StopIteration, KeyError, TypeError, ValueError) as error:
            raise BrokenJournalError(
                f"{path} is not a snapshot of this server ({error!r}). Name another file, "
                "or remove it to start with an empty cluster"
            ) from None
