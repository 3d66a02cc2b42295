"""Samples of services, and their recent history."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.watching.figures import Figures, Loads, between
from shoal_schema.fields.redaction import visible

KEPT = 300
"""Intervals that are kept of a service."""
MAX_PODS = 12
"""Pods of a service with figures of their own: the first ones by name."""


@dataclass(frozen=True, slots=True)
class RolloutSample:
    """State of a rollout with a candidate, and the candidate's load, at one time."""

    stable: str
    """Revision of the stable pods."""
    candidate: str
    says: str = ""
    """The operator's comparison of both revisions."""
    loads: Loads = field(default_factory=dict)
    """The load of the candidate's ready pods."""
    errors: float | None = None
    """Share of the candidate's rows that failed."""
    disagreement: float | None = None
    """Largest share of rows of one output that disagree."""


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
    rollout: "RolloutSample | None" = None
    """None without a candidate."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Figures of one service and its pods between two samples."""

    time_s: float
    """Monotonic time of its end."""
    service: Figures
    pods: Mapping[str, Figures]
    """Figures by pod."""
    candidate: Figures | None = None
    """Figures of the candidate's pods; None without a candidate."""
    errors: float | None = None
    """As in `RolloutSample`."""
    disagreement: float | None = None
    """As in `RolloutSample`."""


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
            interval = Interval(time_s, between(before, now), pods)
            if service.rollout is not None:
                interval = _with_rollout(interval, history.last.rollout, service.rollout)
            history.intervals.append(interval)
            history.last = service

    @property
    def sorted(self) -> list[tuple[str, History]]:
        """Pairs of service name and history, sorted by name."""
        return sorted(self.services.items())


def _with_rollout(interval: Interval, before: RolloutSample | None, now: RolloutSample) -> Interval:
    # The first sample of a candidate has no figures of an interval.
    known = before.loads if before is not None and before.candidate == now.candidate else now.loads
    return replace(interval, candidate=between(known, now.loads), errors=now.errors, disagreement=now.disagreement)


def condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, str]:
    """Return a Kubernetes object's condition of type ``kind``; empty if there is none."""
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def cluster_sample(resource: Mapping[str, Any], loads: Loads, candidates: Loads | None = None) -> ServiceSample:
    """Return the sample of an InferenceService, from its status and the load of its pods and its candidate's."""
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
        rollout=_rollout_sample(resource, candidates or {}),
    )


def _rollout_sample(resource: Mapping[str, Any], loads: Loads) -> RolloutSample | None:
    """Return the sample of a rollout; None if no candidate has pods."""
    state = (resource.get("status") or {}).get("rollout") or {}
    if not loads or not state.get("candidate"):
        return None
    figures = {name: float(value) for name, value in (state.get("figures") or {}).items() if name in _SHARES}
    says = visible(condition(resource, "CandidateJudged").get("message", ""))
    return RolloutSample(visible(state.get("stable", "")), visible(state["candidate"]), says, loads, **figures)


_SHARES = ("errors", "disagreement")
