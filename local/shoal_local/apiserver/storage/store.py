"""Objects, one revision counter for all of them, and the changes since.

Stored objects are never edited in place: a write replaces one. So a reader may keep what it was
given, a list is a snapshot, and an older state is the present one with the later changes undone.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from shoal_local.objects import Key, Object, key_of


class Verb(StrEnum):
    """What happened to an object, in the words of a watch."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class TooOldError(Exception):
    """The revision is older than the oldest change that is still known."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write: the object after it, and before it.

    A removed object is told with its last state, at the revision of its removal.
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
    """Changes kept for each storage key; a watch that is further behind is told 410."""
    revision: int = 1
    objects: dict[str, dict[Key, Object]] = field(default_factory=dict)
    listener: Callable[[Change], None] = lambda change: None
    """Called after each write, for the journal and the watchers; it must not write."""
    _log: dict[str, list[Change]] = field(default_factory=dict)
    _floor: dict[str, int] = field(default_factory=dict)
    _start: int = 1
    """Nothing is known of changes at or before this revision."""

    def get(self, key: str, name: Key) -> Object | None:
        """Return the object, not to be edited, or None."""
        return self.objects.get(key, {}).get(name)

    def objects_of(self, key: str, namespace: str = "") -> list[Object]:
        """Return the objects in the order of their names; '' is all namespaces."""
        objects = self.objects.get(key, {})
        return [objects[name] for name in sorted(objects) if not namespace or name[0] == namespace]

    def since(self, key: str, revision: int) -> list[Change]:
        """Return the changes after ``revision``, oldest first. Raises TooOldError: some of them are forgotten."""
        if revision < self._floor.get(key, self._start):
            raise TooOldError
        log = self._log.get(key, [])
        return log[bisect_right(log, revision, key=lambda change: change.revision) :]

    def write(self, key: str, obj: Object) -> Object:
        """Store an object, or a new version of it, under the next revision; return it."""
        before = self.get(key, key_of(obj))
        stored = self._stamped(obj)
        self.objects.setdefault(key, {})[key_of(obj)] = stored
        self._note(key, Verb.ADDED if before is None else Verb.MODIFIED, stored, before)
        return stored

    def remove(self, key: str, obj: Object) -> Object:
        """Take an object away; return its last state, stamped with the revision of its removal."""
        before = self.objects[key].pop(key_of(obj))
        last = self._stamped(obj)
        self._note(key, Verb.DELETED, last, before)
        return last

    def replay(self, change: Change) -> None:
        """Do again a change read from a journal, at its own revision; the listener is not told."""
        objects = self.objects.setdefault(change.key, {})
        before = objects.get(key_of(change.object))
        if change.verb is Verb.DELETED:
            objects.pop(key_of(change.object), None)
        else:
            objects[key_of(change.object)] = change.object
        self.revision = change.revision
        self._remember(Change(change.revision, change.key, change.verb, change.object, before))

    def restore(self, revision: int, objects: dict[str, dict[Key, Object]]) -> None:
        """Start from a snapshot; what happened before it is forgotten."""
        self.objects, self.revision, self._start = objects, revision, revision

    def _stamped(self, obj: Object) -> Object:
        self.revision += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.revision)}
        return {**obj, "metadata": metadata}

    def _note(self, key: str, verb: Verb, obj: Object, before: Object | None) -> None:
        change = Change(self.revision, key, verb, obj, before)
        self._remember(change)
        self.listener(change)

    def _remember(self, change: Change) -> None:
        log = self._log.setdefault(change.key, [])
        log.append(change)
        # Cut in large steps, so that a write costs constant time on average.
        if len(log) > 2 * self.log_length:
            self._floor[change.key] = log[-self.log_length - 1].revision
            del log[: -self.log_length]
