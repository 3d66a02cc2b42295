"""The definition of ``InferenceGraph``: names, columns and status."""

from shoal_schema.fields.declaring import Json
from shoal_schema.publishing.crd import SCALE, Definition, images_schema, upgrade_schema
from shoal_schema.resource import GRAPH_KIND, GRAPH_PLURAL
from shoal_schema.resource.graph import GRAPH_RULES, InferenceGraphSpec

GRAPH_SHORT_NAME = "infgraph"
_READY = '.status.conditions[?(@.type=="Ready")]'
_COLUMNS: list[Json] = [
    {"name": "Ready", "type": "string", "jsonPath": f"{_READY}.status"},
    {"name": "Reason", "type": "string", "jsonPath": f"{_READY}.reason"},
    {"name": "Replicas", "type": "integer", "jsonPath": ".status.replicas"},
    {"name": "URL", "type": "string", "jsonPath": ".status.url"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Wanted", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1},
    {"name": "Message", "type": "string", "jsonPath": f"{_READY}.message", "priority": 1},
]
_STATUS: Json = {
    "replicas": {"type": "integer", "format": "int32", "description": "Number of existing pods."},
    "readyReplicas": {"type": "integer", "format": "int32", "description": "Number of ready pods."},
    "selector": {"type": "string", "description": "Label selector of the pods, for `kubectl scale` and an HPA."},
    "url": {"type": "string", "description": "URL of the service for clients."},
    "images": images_schema(),
    "upgrade": upgrade_schema(),
}


def graphs() -> Definition:
    """Return the definition of ``InferenceGraph``."""
    return Definition(
        kind=GRAPH_KIND,
        plural=GRAPH_PLURAL,
        short_name=GRAPH_SHORT_NAME,
        description="Models that call one another, served as one model.",
        spec=InferenceGraphSpec,
        status=_STATUS,
        columns=_COLUMNS,
        conditions="Conditions of the graph, with reason and remedy.",
        subresources=SCALE,
        rules=GRAPH_RULES,
    )
