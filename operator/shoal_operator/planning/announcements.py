"""Events: what is said once, when it happens."""

from dataclasses import dataclass

from shoal_operator.autoscaler.aim import Aim
from shoal_schema.conditions import Reason
from shoal_schema.declaring import Json
from shoal_schema.redaction import visible
from shoal_schema.resource import API_VERSION, KIND


@dataclass(frozen=True, slots=True)
class Announcement:
    """What an Event says."""

    warning: bool
    reason: Reason
    message: str


def scaled(aim: Aim, was: int, replicas: int, why: str) -> Announcement:
    """Return what is said when the operator has changed a service's replicas.

    Args:
        aim: with the bounds of the spec.
        was: the replicas that it found.
        replicas: those that it wrote.
        why: of the load; a number out of bounds, which somebody else had written, is reason enough.
    """
    if was > aim.maximum:
        why = f"{was} were set, and scaling.maxReplicas is {aim.maximum}"
    elif was < aim.minimum:
        why = f"{was} were set, and scaling.minReplicas is {aim.minimum}"
    reason = Reason.SCALED_UP if replicas > was else Reason.SCALED_DOWN
    return Announcement(
        warning=False, reason=reason, message=f"{was} to {replicas} replica{'' if replicas == 1 else 's'}: {why}"
    )


def make_event(resource: Json, news: Announcement, at: str) -> Json:
    """Return the Event that tells of a service's news; ``at`` as the API writes times."""
    metadata = resource["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": API_VERSION,
            # In a list objects do not say it.
            "kind": resource.get("kind", KIND),
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": "Warning" if news.warning else "Normal",
        "reason": str(news.reason),
        "message": visible(news.message)[:1024],
        "source": {"component": "shoal-operator"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
