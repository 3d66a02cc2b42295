"""Kubernetes Events about services."""

from dataclasses import dataclass

from shoal_operator.autoscaler.targets import ScalingTargets
from shoal_schema.conditions import Reason
from shoal_schema.declaring import Json
from shoal_schema.redaction import visible
from shoal_schema.resource import API_VERSION, KIND


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """Content of a Kubernetes Event about a service."""

    warning: bool
    reason: Reason
    message: str


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


def make_event(resource: Json, event: ServiceEvent, at: str) -> Json:
    """Return the Event as an API object; ``at`` is an RFC 3339 time."""
    metadata = resource["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": API_VERSION,
            # Items of a list have no kind.
            "kind": resource.get("kind", KIND),
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": str(event.reason),
        # The API server rejects longer messages.
        "message": visible(event.message)[:1024],
        "source": {"component": "shoal-operator"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
