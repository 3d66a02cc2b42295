"""What was seen of services at one moment, and what has been seen of them for a while."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.watching.figures import Figures, Loads, between
from shoal_schema.redaction import visible

KEPT = 300
"""Looks that are kept of a service."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One service at one moment.

    Args:
        loads: what its ready pods say.
        wanted: pods that should run; None where nobody says.
        state: one word: the reason of the condition Ready, or why it cannot be read.
        well: whether that is as it should be.
        says: why there are so many pods, in the operator's words.
    """

    loads: Loads
    wanted: int | None = None
    state: str = ""
    well: bool = True
    says: str = ""


@dataclass(slots=True)
class History:
    """What was seen of one service, the last look last."""

    last: Seen
    figures: deque[Figures] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def now(self) -> Figures:
        """What happened between the last two looks."""
        return self.figures[-1]


@dataclass(slots=True)
class Watched:
    """All services, by name, as they have been seen to be."""

    services: dict[str, History] = field(default_factory=dict)

    def see(self, seen: Mapping[str, Seen]) -> None:
        """Take one more look; services that are not in it are gone."""
        for name in self.services.keys() - seen.keys():
            del self.services[name]
        for name, service in seen.items():
            history = self.services.setdefault(name, History(service))
            history.figures.append(between(history.last.loads, service.loads))
            history.last = service

    @property
    def sorted(self) -> list[tuple[str, History]]:
        """By name."""
        return sorted(self.services.items())


def condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, str]:
    """Return one condition of a Kubernetes object, or an empty one."""
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def seen_in_cluster(resource: Mapping[str, Any], loads: Loads) -> Seen:
    """Return what an InferenceService's status and its pods say together."""
    ready = condition(resource, "Ready")
    well = ready.get("status") == "True"
    says = condition(resource, "ScalingActive") if well else ready
    return Seen(
        loads,
        wanted=(resource.get("spec") or {}).get("replicas", 1),
        state=visible(ready.get("reason", "Unseen")),
        well=well,
        says=visible(says.get("message", "")),
    )
