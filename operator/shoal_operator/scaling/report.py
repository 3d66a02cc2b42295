"""The autoscaler's report about a service, and the Event about a new count."""

from dataclasses import dataclass
from enum import StrEnum

from shoal_operator.children.events import ServiceEvent
from shoal_operator.scaling.decision import ScalingLimit
from shoal_operator.scaling.targets import ScalingTargets
from shoal_schema.resource.conditions import Reason, ScalingReason


class NoLoad(StrEnum):
    """Reason that a service's load is unknown."""

    NO_READY_POD = "no ready pod"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ScalingReport:
    """The autoscaler's report about a service."""

    reason: ScalingReason
    no_load: NoLoad | None = None
    """Why the load is unknown; None where it is known."""
    sentence: str = ""
    """Explanation of the count."""
    limit: ScalingLimit | None = None
    """Why replicas are fewer than the load requires."""
    conflicting_writer: str | None = None
    """Another field manager that sets replicas, empty if unknown; None without a conflict."""


def scaling_event(targets: ScalingTargets, was: int, replicas: int, why: str) -> ServiceEvent:
    """Return the Event for a change of a service's replicas by the operator.

    Args:
        targets: scaling targets, with the bounds of the spec.
        was: the previous count.
        replicas: the new count.
        why: the reason by load; not used if the previous count was out of bounds.
    """
    if was > targets.maximum:
        why = f"spec.replicas {was} exceeds scaling.maxReplicas {targets.maximum}"
    elif was < targets.minimum:
        why = f"spec.replicas {was} is less than scaling.minReplicas {targets.minimum}"
    reason = Reason.SCALED_UP if replicas > was else Reason.SCALED_DOWN
    return ServiceEvent(
        warning=False, reason=reason, message=f"{was} to {replicas} replica{'' if replicas == 1 else 's'}: {why}"
    )
