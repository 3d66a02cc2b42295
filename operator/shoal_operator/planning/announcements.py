"""Kubernetes Events about services."""

from dataclasses import dataclass

from shoal_operator.autoscaler.aim import Aim
from shoal_schema.conditions import Reason
from shoal_schema.declaring import Json
from shoal_schema.redaction import visible
from shoal_schema.resource import API_VERSION, KIND


@dataclass(frozen=True, slots=True)
class Announcement:
    """The content of an Event."""

    warning: bool
    reason: Reason
    message: str


def scaled(aim: Aim, was: int, replicas: int, why: str) -> Announcement:
    """Return the Event for a change of a service's replicas by the operator.

    Args:
        aim: with the bounds of the spec.
        was: the previous count.
        replicas: the new count.
        why: the reason by load; replaced if the previous count was out of bounds.
    """
    if was > aim.maximum:
        why = f"spec.replicas {was} exceeds scaling.maxReplicas {aim.maximum}"
    elif was < aim.minimum:
        why = f"spec.replicas {was} is less than scaling.minReplicas {aim.minimum}"
    reason = Reason.SCALED_UP if replicas > was else Reason.SCALED_DOWN
    return Announcement(
        warning=False, reason=reason, message=f"{was} to {replicas} replica{'' if replicas == 1 else 's'}: {why}"
    )


def make_event(resource: Json, news: Announcement, at: str) -> Json:
    """Return the Event object; ``at`` is a time in the API's format."""
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
        "type": "Warning" if news.warning else "Normal",
        "reason": str(news.reason),
        # The API server rejects longer messages.
        "message": visible(news.message)[:1024],
        "source": {"component": "shoal-operator"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
