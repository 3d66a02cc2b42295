"""A plan: what to write, what to tell, and when to look again."""

from dataclasses import dataclass, field
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
