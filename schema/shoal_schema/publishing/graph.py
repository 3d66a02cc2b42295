"""What ``InferenceGraph`` is, beside its spec: names, columns, status."""

from shoal_schema.declaring import Json, Rule
from shoal_schema.publishing.crd import SCALE, Definition, images_schema, upgrade_schema
from shoal_schema.resource import GRAPH_KIND, GRAPH_PLURAL
from shoal_schema.resource.graph import InferenceGraphSpec

GRAPH_SHORT_NAME = "infgraph"
_RULES = (
    Rule(
        "self.spec.steps.all(s, !has(s.graph) || s.graph != self.metadata.name)",
        "a graph cannot be a step of itself",
        ".spec.steps",
    ),
)


def graphs() -> Definition:
    """Return what ``InferenceGraph`` is."""
    return Definition(
        kind=GRAPH_KIND,
        plural=GRAPH_PLURAL,
        short_name=GRAPH_SHORT_NAME,
        description="Models that work together: which, on what, and what is told of their answers.",
        spec=InferenceGraphSpec,
        status=_status(),
        columns=_columns(),
        conditions="What is true of the graph, why, and what to do about it.",
        subresources=SCALE,
        rules=_RULES,
    )


def _columns() -> list[Json]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    return [
        {"name": "Ready", "type": "string", "jsonPath": f"{ready}.status"},
        {"name": "Reason", "type": "string", "jsonPath": f"{ready}.reason"},
        {"name": "Replicas", "type": "integer", "jsonPath": ".status.replicas"},
        {"name": "URL", "type": "string", "jsonPath": ".status.url"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Wanted", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1},
        {"name": "Message", "type": "string", "jsonPath": f"{ready}.message", "priority": 1},
    ]


def _status() -> Json:
    return {
        "replicas": {"type": "integer", "format": "int32", "description": "Number of pods that exist."},
        "readyReplicas": {"type": "integer", "format": "int32", "description": "Number of pods that answer requests."},
        "selector": {"type": "string", "description": "Label selector of the pods, for `kubectl scale` and an HPA."},
        "url": {"type": "string", "description": "Where callers send requests."},
        "images": images_schema(),
        "upgrade": upgrade_schema(),
    }
