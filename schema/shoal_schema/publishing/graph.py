"""The definition of ``InferenceGraph``: names, columns and status."""

from shoal_schema.publishing.crd import (
    MESSAGE,
    SCALE,
    SERVED,
    SERVED_STATUS,
    Definition,
    images_schema,
    upgrade_schema,
)
from shoal_schema.resource import GRAPH_KIND, GRAPH_PLURAL
from shoal_schema.resource.graph import GRAPH_RULES, InferenceGraphSpec

GRAPH_SHORT_NAME = "infgraph"


def graphs() -> Definition:
    """Return the definition of ``InferenceGraph``."""
    return Definition(
        kind=GRAPH_KIND,
        plural=GRAPH_PLURAL,
        short_name=GRAPH_SHORT_NAME,
        description="Models that call one another, served as one model.",
        spec=InferenceGraphSpec,
        status={**SERVED_STATUS, "images": images_schema(), "upgrade": upgrade_schema()},
        columns=[*SERVED, MESSAGE],
        conditions="Conditions of the graph, with reason and remedy.",
        subresources=SCALE,
        rules=GRAPH_RULES,
    )
