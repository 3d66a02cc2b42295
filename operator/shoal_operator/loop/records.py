"""What the operator remembers of each object between reconciliations: one record, dropped when the object is deleted.

Each part of the operator declares a class for its state of one object, and finds its instance here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from shoal_operator.children.observation import Key

S = TypeVar("S")


@runtime_checkable
class Closing(Protocol):
    """State that must be closed, because it holds a task, a port or similar."""

    def close(self) -> None:
        """Release what the state holds. Called once, when the state leaves its record."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The uid of the object whose states a record holds."""

    uid: str


class Records:
    """The records of all objects: at most one state of each class per object."""

    def __init__(self) -> None:
        self._records: dict[Key, dict[type, Any]] = {}

    def get(self, key: Key, kind: type[S]) -> S:
        """Return an object's state of this class; create it if it is missing.

        Only for objects that exist. Tasks that may outlive their object use `find`.
        """
        record = self._records.setdefault(key, {})
        state: S | None = record.get(kind)
        if state is None:
            state = record[kind] = kind()
        return state

    def find(self, key: Key, kind: type[S]) -> S | None:
        """Return an object's state of this class, or None."""
        return self._records.get(key, {}).get(kind)

    def put(self, key: Key, state: object) -> None:
        """Store a state of an object.

        It replaces the object's earlier state of the same class.
        """
        self._records.setdefault(key, {})[type(state)] = state

    def of(self, kind: type[S]) -> Iterator[tuple[Key, S]]:
        """Yield the states of this class, each with the key of its object.

        The caller may remove states or objects during the iteration.
        """
        for key, record in list(self._records.items()):
            if (state := record.get(kind)) is not None:
                yield key, state

    def identify(self, key: Key, uid: str, *, keep: tuple[type, ...]) -> None:
        """Drop the states of a deleted object if another object has its name now.

        The work queue may not notice that an object is deleted and created again.
        """
        known = self.find(key, Incarnation)
        if known is not None and known.uid != uid:
            self.drop(key, keep=keep)
        self.put(key, Incarnation(uid))

    def remove(self, key: Key, kind: type) -> None:
        """Close and remove an object's state of this class, if there is one."""
        record = self._records.get(key, {})
        state = record.pop(kind, None)
        if isinstance(state, Closing):
            state.close()
        if key in self._records and not record:
            del self._records[key]

    def remove_all(self, kind: type) -> None:
        """Close and remove the states of this class of all objects."""
        for key, _ in self.of(kind):
            self.remove(key, kind)

    def drop(self, key: Key, *, keep: tuple[type, ...] = ()) -> None:
        """Close and remove all states of an object, except for these classes."""
        for kind in [each for each in self._records.get(key, {}) if each not in keep]:
            self.remove(key, kind)
