"""What a user asks for, be it an ``InferenceService`` or an ``InferenceGraph``: both are pods behind a Service."""

from collections.abc import Mapping

from msgspec import structs

from shoal_schema.declaring import Json
from shoal_schema.decoding import parse_graph_spec, parse_spec
from shoal_schema.resource import GRAPH_KIND, GRAPH_PLURAL, KIND, PLURAL
from shoal_schema.resource.graph import GraphSpec, StepSpec
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.service import InferenceServiceSpec

SERVED: Mapping[str, str] = {KIND: PLURAL, GRAPH_KIND: GRAPH_PLURAL}
"""What has pods that answer requests, and its plural."""
_ALIKE = (
    *("proxy", "queue", "replicas", "scaling", "rollout", "route", "service", "tls", "network_policy", "access"),
    "pod",
)


def asked_of(resource: Json) -> InferenceServiceSpec:
    """Return what is asked for, of a graph what it has in common with a service.

    Raises:
        SpecError: a field is missing, of the wrong type, or out of range; or a graph cannot work.
    """
    if resource.get("kind") != GRAPH_KIND:
        return parse_spec(resource)
    spec = parse_graph_spec(resource)
    return InferenceServiceSpec(model=ModelSpec(), **{name: getattr(spec, name) for name in _ALIKE})


def graph_of(resource: Json, service_url: str) -> GraphSpec | None:
    """Return the graph that pods are to run, each step by where its model answers; None of a service.

    Args:
        resource: the service or graph.
        service_url: how a service is reached within the cluster, as the operator's setting says it.

    Raises:
        SpecError: as `asked_of`.
    """
    if resource.get("kind") != GRAPH_KIND:
        return None
    spec = parse_graph_spec(resource)
    namespace = resource["metadata"]["namespace"]
    return spec.graph(tuple(_located(step, namespace, service_url) for step in spec.steps))


def _located(step: StepSpec, namespace: str, service_url: str) -> StepSpec:
    name = step.service or step.graph
    if name is None:
        return step
    # By name: the address is another one when the service is made anew, and its pods would be, too.
    base = service_url.replace("$(CLUSTER_IP)", "$(NAME).$(NAMESPACE).svc")
    base = base.replace("$(NAME)", name).replace("$(NAMESPACE)", namespace).rstrip("/")
    return structs.replace(step, url=f"{base}/v2/models/{name}", service=None, graph=None)
