"""Objects, one revision counter for all of them, and the log of changes.

Stored objects are immutable: a write replaces the object. So readers may keep an object, a list is a snapshot, and
earlier states can be derived from the current one and the log.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from shoal_local.objects import Key, Object, key_of


class Verb(StrEnum):
    """The type of a change, as in watch events."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class TooOldError(Exception):
    """The revision is older than the log of changes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write: its revision, and the object before and after it.

    After a deletion, ``object`` is the last state of the object with the revision of the deletion.
    """

    revision: int
    key: str
    verb: Verb
    object: Object
    before: Object | None


@dataclass(slots=True)
class Store:
    """All objects of the cluster by storage key (``apps/deployments``) and name."""

    log_length: int = 5000
    """Changes kept for each storage key; a watch that is further behind gets a 410."""
    revision: int = 1
    objects: dict[str, dict[Key, Object]] = field(default_factory=dict)
    listener: Callable[[Change], None] = lambda change: None
    """Called after each write, for the journal and the watches; it must not write."""
    _log: dict[str, list[Change]] = field(default_factory=dict)
    _floor: dict[str, int] = field(default_factory=dict)
    _start: int = 1
    """The revision of the snapshot: the log has no changes up to it."""

    def get(self, key: str, name: Key) -> Object | None:
        """Return the object, which must not be modified, or None."""
        return self.objects.get(key, {}).get(name)

    def objects_of(self, key: str, namespace: str = "") -> list[Object]:
        """Return the objects sorted by name; '' stands for all namespaces."""
        objects = self.objects.get(key, {})
        return [objects[name] for name in sorted(objects) if not namespace or name[0] == namespace]

    def since(self, key: str, revision: int) -> list[Change]:
        """Return the changes after ``revision``, oldest first. Raises TooOldError: the log begins later."""
        if revision < self._floor.get(key, self._start):
            raise TooOldError
        log = self._log.get(key, [])
        # The log is sorted by revision.
        return log[bisect_right(log, revision, key=lambda change: change.revision) :]

    def write(self, key: str, obj: Object) -> Object:
        """Store an object under the next revision; return the stored version."""
        before = self.get(key, key_of(obj))
        stored = self._stamped(obj)
        self.objects.setdefault(key, {})[key_of(obj)] = stored
        self._note(key, Verb.ADDED if before is None else Verb.MODIFIED, stored, before)
        return stored

    def remove(self, key: str, obj: Object) -> Object:
        """Delete an object; return its last state, with the revision of the deletion."""
        before = self.objects[key].pop(key_of(obj))
        last = self._stamped(obj)
        self._note(key, Verb.DELETED, last, before)
        return last

    def replay(self, change: Change) -> None:
        """Apply a change from a journal at its own revision; notify no listener."""
        objects = self.objects.setdefault(change.key, {})
        before = objects.get(key_of(change.object))
        if change.verb is Verb.DELETED:
            objects.pop(key_of(change.object), None)
        else:
            objects[key_of(change.object)] = change.object
        self.revision = change.revision
        self._append(Change(change.revision, change.key, change.verb, change.object, before))

    def restore(self, revision: int, objects: dict[str, dict[Key, Object]]) -> None:
        """Replace the contents with a snapshot; the log of changes starts empty."""
        self.objects, self.revision, self._start = objects, revision, revision

    def _stamped(self, obj: Object) -> Object:
        self.revision += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.revision)}
        return {**obj, "metadata": metadata}

    def _note(self, key: str, verb: Verb, obj: Object, before: Object | None) -> None:
        change = Change(self.revision, key, verb, obj, before)
        self._append(change)
        self.listener(change)

    def _append(self, change: Change) -> None:
        log = self._log.setdefault(change.key, [])
        log.append(change)
        # Truncated in large steps, so that a write takes constant time on average.
        if len(log) > 2 * self.log_length:
            self._floor[change.key] = log[-self.log_length - 1].revision
            del log[: -self.log_length]
