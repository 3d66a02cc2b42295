"""The common spec of ``InferenceService`` and ``InferenceGraph``: both are pods behind a Service."""

from collections.abc import Mapping

from msgspec import structs

from shoal_schema.decoding import parse_graph_spec, parse_spec
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import GRAPH_KIND, GRAPH_PLURAL, KIND, PLURAL
from shoal_schema.resource.graph import GraphSpec, StepSpec
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.service import InferenceServiceSpec

SERVED: Mapping[str, str] = {KIND: PLURAL, GRAPH_KIND: GRAPH_PLURAL}
"""Kinds whose pods serve requests, with their plurals."""
_SHARED_FIELDS = (
    *("proxy", "queue", "replicas", "scaling", "rollout", "route", "service", "tls", "network_policy", "access"),
    "pod",
)


def service_spec(resource: Json) -> InferenceServiceSpec:
    """Return the spec of a service, or the part of a graph's spec that services have too.

    Raises:
        SpecError: a field is missing, has the wrong type, or is out of range; or the graph is invalid.
    """
    if resource.get("kind") != GRAPH_KIND:
        return parse_spec(resource)
    spec = parse_graph_spec(resource)
    # A graph's pods have no model of their own.
    return InferenceServiceSpec(model=ModelSpec(), **{name: getattr(spec, name) for name in _SHARED_FIELDS})


def graph_of(resource: Json, service_url: str) -> GraphSpec | None:
    """Return the graph for the pods, with the URL of each step's model; None for a service.

    Args:
        resource: the service or graph.
        service_url: template of a service's URL in the cluster, from the operator's settings.

    Raises:
        SpecError: as `service_spec`.
    """
    if resource.get("kind") != GRAPH_KIND:
        return None
    spec = parse_graph_spec(resource)
    namespace = resource["metadata"]["namespace"]
    return spec.graph(tuple(_with_url(step, namespace, service_url) for step in spec.steps))


def _with_url(step: StepSpec, namespace: str, service_url: str) -> StepSpec:
    name = step.service or step.graph
    if name is None:
        return step
    # By DNS name: a cluster IP changes when the service is recreated, which would replace the graph's pods.
    base = service_url.replace("$(CLUSTER_IP)", "$(NAME).$(NAMESPACE).svc")
    base = base.replace("$(NAME)", name).replace("$(NAMESPACE)", namespace).rstrip("/")
    return structs.replace(step, url=f"{base}/v2/models/{name}", service=None, graph=None)
