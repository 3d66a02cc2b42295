"""Kubernetes Events about services."""

from dataclasses import dataclass

from shoal_schema.fields.declaring import Json
from shoal_schema.fields.redaction import visible
from shoal_schema.resource import API_VERSION, KIND
from shoal_schema.resource.conditions import Reason


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """Content of a Kubernetes Event about a service."""

    warning: bool
    reason: Reason
    message: str


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
