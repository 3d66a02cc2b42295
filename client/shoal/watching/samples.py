"""Samples of services, and their recent history."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.watching.figures import Figures, Loads, between
from shoal_schema.fields.redaction import visible

KEPT = 300
"""Intervals that are kept of a service."""
MAX_PODS = 12
"""Pods of a service with figures of their own: the first ones by name."""


@dataclass(frozen=True, slots=True)
class ServiceSample:
    """State and load of one service at one time."""

    loads: Loads
    """The load of its ready pods."""
    wanted: int | None = None
    """Desired replicas; None outside a cluster."""
    state: str = ""
    """The reason of the condition Ready, or of the missing sample; one word."""
    well: bool = True
    """Whether the state is normal."""
    says: str = ""
    """The operator's explanation of the number of replicas."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Figures of one service and its pods between two samples."""

    time_s: float
    """Monotonic time of its end."""
    service: Figures
    pods: Mapping[str, Figures]
    """Figures by pod."""


@dataclass(slots=True)
class History:
    """The recent intervals of one service, oldest first."""

    last: ServiceSample
    intervals: deque[Interval] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def now(self) -> Figures:
        """The figures of the last interval."""
        return self.intervals[-1].service


@dataclass(slots=True)
class Histories:
    """The history of all services, by name."""

    services: dict[str, History] = field(default_factory=dict)

    def add(self, seen: Mapping[str, ServiceSample], time_s: float) -> None:
        """Add samples taken at one time; remove services without a sample."""
        for name in self.services.keys() - seen.keys():
            del self.services[name]
        for name, service in seen.items():
            # The first sample of a service has no figures of an interval.
            history = self.services.setdefault(name, History(service))
            before, now = history.last.loads, service.loads
            pods = {pod: between(before, {pod: now[pod]}) for pod in sorted(now)[:MAX_PODS]}
            history.intervals.append(Interval(time_s, between(before, now), pods))
            history.last = service

    @property
    def sorted(self) -> list[tuple[str, History]]:
        """Pairs of service name and history, sorted by name."""
        return sorted(self.services.items())


def condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, str]:
    """Return a Kubernetes object's condition of type ``kind``; empty if there is none."""
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def cluster_sample(resource: Mapping[str, Any], loads: Loads) -> ServiceSample:
    """Return the sample of an InferenceService, from its status and the load of its pods."""
    ready = condition(resource, "Ready")
    # The condition that explains most: scaling while all is well, otherwise readiness.
    well = ready.get("status") == "True"
    says = condition(resource, "ScalingActive") if well else ready
    return ServiceSample(
        loads,
        wanted=(resource.get("spec") or {}).get("replicas", 1),
        state=visible(ready.get("reason", "Unseen")),
        well=well,
        says=visible(says.get("message", "")),
    )
