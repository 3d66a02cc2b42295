"""Changes planned by a controller: writes, events, and when to reconcile."""

from dataclasses import dataclass, field
from datetime import datetime

from shoal_local.objects import Object, condition, is_ready


@dataclass(frozen=True, slots=True)
class Create:
    """Action: create an object."""

    object: Object


@dataclass(frozen=True, slots=True)
class Patch:
    """Action: patch an object, if it has not changed since it was read."""

    object: Object
    patch: Object
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Action: delete an object."""

    object: Object


@dataclass(frozen=True, slots=True)
class PostEvent:
    """Action: post an event about an object; ``kind`` is Normal or Warning."""

    object: Object
    kind: str
    reason: str
    message: str


Action = Create | Patch | Delete | PostEvent


@dataclass(slots=True)
class Changes:
    """Actions in the order of their execution."""

    actions: list[Action] = field(default_factory=list)
    requeue_s: float | None = None
    """Reconcile again after this time, even without a change."""

    def add(self, *actions: Action) -> None:
        """Add actions."""
        self.actions.extend(actions)

    def requeue(self, after_s: float | None) -> None:
        """Schedule the next reconciliation after at most this delay."""
        if after_s is not None:
            self.requeue_s = after_s if self.requeue_s is None else min(self.requeue_s, after_s)


def seconds_since(text: str, now: datetime) -> float:
    """Return the seconds since a timestamp of the API."""
    return (now - datetime.fromisoformat(text)).total_seconds()


def available_in_s(pod: Object, min_ready_s: float, now: datetime) -> float | None:
    """Return the seconds until a pod is available; 0: now, None: not ready."""
    found = condition(pod, "Ready")
    if found is None or not is_ready(pod):
        return None
    return max(0.0, min_ready_s - seconds_since(found["lastTransitionTime"], now)) if min_ready_s > 0 else 0.0


def status_differs(status: Object, obj: Object) -> bool:
    """Return whether a field of ``status`` differs from the object's status."""
    # Zero, empty and absent are equal: the API drops empty fields.
    known = obj.get("status") or {}
    return any((known.get(key) or None) != (value or None) for key, value in status.items())
