"""A plan: what to write, what to tell, and when to look again; and what controllers read in objects to make one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Create:
    """Create this object."""

    object: Object


@dataclass(frozen=True, slots=True)
class Patch:
    """Merge the patch into the object, provided that it has not changed since."""

    object: Object
    patch: Object
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this object."""

    object: Object


@dataclass(frozen=True, slots=True)
class Tell:
    """Post an event about the object; ``kind`` is Normal or Warning."""

    object: Object
    kind: str
    reason: str
    message: str


Action = Create | Patch | Delete | Tell


@dataclass(slots=True)
class Plan:
    """Actions in order."""

    actions: list[Action] = field(default_factory=list)
    again_s: float | None = None
    """Look again after this time even if nothing happens."""

    def add(self, *actions: Action) -> None:
        """Add actions."""
        self.actions.extend(actions)

    def look_again(self, after_s: float | None) -> None:
        """Look again after this time, or earlier if that was asked for already."""
        if after_s is not None:
            self.again_s = after_s if self.again_s is None else min(self.again_s, after_s)


def stamp(now: datetime) -> str:
    """Return a time as the API writes it."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(text: str, now: datetime) -> float:
    """Return how long ago a time of the API was."""
    return (now - datetime.fromisoformat(text)).total_seconds()


def controller_of(obj: Object) -> Object | None:
    """Return the reference to the object's controller."""
    references = obj["metadata"].get("ownerReferences") or []
    return next((dict(r) for r in references if r.get("controller")), None)


def owned_by(owner: Object, objects: Iterable[Object]) -> list[Object]:
    """Return the objects that the owner controls."""
    uid = owner["metadata"]["uid"]
    return [o for o in objects if (ref := controller_of(o)) is not None and ref["uid"] == uid]


def reference_to(owner: Object) -> Object:
    """Return the reference by which a controller owns what it makes."""
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def condition(obj: Object, kind: str) -> Object | None:
    """Return the status condition of a type."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((dict(c) for c in conditions if c["type"] == kind), None)


def is_going(obj: Object) -> bool:
    """Say whether the object is being deleted."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_ready(pod: Object) -> bool:
    """Say whether the pod's Ready condition is true."""
    found = condition(pod, "Ready")
    return found is not None and found["status"] == "True"


def has_ended(pod: Object) -> bool:
    """Say whether the pod's containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_active(pod: Object) -> bool:
    """Say whether the pod counts as a replica."""
    return not is_going(pod) and not has_ended(pod)


def available_in_s(pod: Object, min_ready_s: float, now: datetime) -> float | None:
    """Return in how many seconds the pod counts as available. 0 when it does, None while it is not ready."""
    found = condition(pod, "Ready")
    if found is None or found["status"] != "True":
        return None
    if min_ready_s <= 0:
        return 0.0
    return max(0.0, min_ready_s - seconds_since(found["lastTransitionTime"], now))


def tells_more(status: Object, obj: Object) -> bool:
    """Say whether a status differs from the one that the object has. Fields of others do not count."""
    known = obj.get("status") or {}
    return any((known.get(key) or None) != (value or None) for key, value in status.items())
