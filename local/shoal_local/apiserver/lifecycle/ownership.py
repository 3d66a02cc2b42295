"""Owner references: what to do with an object whose owners are gone or are going.

Source: kubernetes/kubernetes pkg/controller/garbagecollector (attemptToDeleteItem).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Object = dict[str, Any]


class Owner(StrEnum):
    """State of one owner."""

    SOLID = "it is there, or its kind is not served and nobody can tell"
    WAITING = "it is being deleted in the foreground and waits for its dependents"
    GONE = "no object has its uid"


class Fate(StrEnum):
    """What becomes of a dependent."""

    STAY = "stay"
    DISOWN = "stay, without the references to owners that are gone"
    DELETE = "delete"
    DELETE_FOREGROUND = "delete, its own dependents first"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A fate, and the references that are left."""

    fate: Fate
    references: tuple[Object, ...] = ()


def judge(references: Iterable[Object], state_of: Callable[[Object], Owner]) -> Verdict:
    """Return what becomes of an object with these owner references.

    One solid owner keeps it; without any, it goes as the last owner went.
    """
    states = [(reference, state_of(reference)) for reference in references]
    solid = tuple(reference for reference, state in states if state is Owner.SOLID)
    if not states or len(solid) == len(states):
        return Verdict(Fate.STAY, solid)
    if solid:
        return Verdict(Fate.DISOWN, solid)
    waiting = any(state is Owner.WAITING for _, state in states)
    return Verdict(Fate.DELETE_FOREGROUND if waiting else Fate.DELETE)


def references_of(obj: Object) -> list[Object]:
    """Return the object's owner references."""
    return obj["metadata"].get("ownerReferences") or []
