"""What a pass over an object changes: what to write, what to tell, and when to look again."""

from dataclasses import dataclass, field
from datetime import datetime

from shoal_local.objects import Object, condition, is_ready


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
class Changes:
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


def seconds_since(text: str, now: datetime) -> float:
    """Return how long ago a time of the API was."""
    return (now - datetime.fromisoformat(text)).total_seconds()


def available_in_s(pod: Object, min_ready_s: float, now: datetime) -> float | None:
    """Return in how many seconds the pod counts as available. 0 when it does, None while it is not ready."""
    found = condition(pod, "Ready")
    if found is None or not is_ready(pod):
        return None
    return max(0.0, min_ready_s - seconds_since(found["lastTransitionTime"], now)) if min_ready_s > 0 else 0.0


def tells_more(status: Object, obj: Object) -> bool:
    """Return whether a status differs from the one that the object has. Fields of others do not count."""
    known = obj.get("status") or {}
    return any((known.get(key) or None) != (value or None) for key, value in status.items())
