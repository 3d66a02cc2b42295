"""The result of one reconciliation: objects to write, events to post, and the delay until the next."""

from dataclasses import dataclass, field
from datetime import datetime

from shoal_local.objects import Object, condition, is_ready


@dataclass(frozen=True, slots=True)
class Create:
    """Create this object."""

    object: Object


@dataclass(frozen=True, slots=True)
class Patch:
    """Merge the patch into the object, if the object has not changed since it was read."""

    object: Object
    patch: Object
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this object."""

    object: Object


@dataclass(frozen=True, slots=True)
class PostEvent:
    """Post an event about the object; ``kind`` is Normal or Warning."""

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
        """Reconcile again after this time, or earlier if an earlier time is set."""
        if after_s is not None:
            self.requeue_s = after_s if self.requeue_s is None else min(self.requeue_s, after_s)


def seconds_since(text: str, now: datetime) -> float:
    """Return the seconds since a time of the API."""
    return (now - datetime.fromisoformat(text)).total_seconds()


def available_in_s(pod: Object, min_ready_s: float, now: datetime) -> float | None:
    """Return the seconds until the pod counts as available: 0 if it does now, None while it is not ready."""
    found = condition(pod, "Ready")
    if found is None or not is_ready(pod):
        return None
    return max(0.0, min_ready_s - seconds_since(found["lastTransitionTime"], now)) if min_ready_s > 0 else 0.0


def status_differs(status: Object, obj: Object) -> bool:
    """Return whether a field of the status differs from the object's. Other fields of the object do not count."""
    # Zero, empty and absent are equal: the API drops empty fields.
    known = obj.get("status") or {}
    return any((known.get(key) or None) != (value or None) for key, value in status.items())
