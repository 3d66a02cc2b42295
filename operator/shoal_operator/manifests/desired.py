"""The desired objects of a service, in the order of writes."""

from dataclasses import dataclass, replace
from enum import StrEnum

from shoal_operator.manifests.activator import make_activator_slice
from shoal_operator.manifests.deployment import make_deployment
from shoal_operator.manifests.policies import make_candidate_policy, make_disruption_budget, make_network_policy
from shoal_operator.manifests.route import make_http_route, make_ingress
from shoal_operator.manifests.scaler import (
    HPA_API_VERSION,
    SCALED_OBJECT_API_VERSION,
    make_horizontal_pod_autoscaler,
    make_scaled_object,
)
from shoal_operator.manifests.service import (
    make_candidate_service,
    make_peers_service,
    make_service,
    make_service_account,
)
from shoal_operator.manifests.target import CANDIDATE_SUFFIX, PEERS_SUFFIX, Target
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.rollout import RolloutStrategy


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of Kubernetes objects."""

    kind: str
    api_version: str
    plural: str


class Role(StrEnum):
    """The purpose of a child among the children of its kind."""

    STABLE = "stable"
    """The child that has the resource's name."""
    PEERS = "peers"
    """The headless Service through which replicas discover each other."""
    ACTIVATOR = "activator"
    """Endpoints of the activator, with the resource's name."""
    CANDIDATE = "candidate"
    """The child for pods of a new spec, which are compared with the stable pods."""


_SUFFIXES = {Role.STABLE: "", Role.PEERS: PEERS_SUFFIX, Role.ACTIVATOR: "", Role.CANDIDATE: CANDIDATE_SUFFIX}


@dataclass(frozen=True, slots=True)
class Child(Kind):
    """A child of a resource, addressed by kind and role. Its name is the resource's with the suffix of the role."""

    role: Role = Role.STABLE

    @property
    def suffix(self) -> str:
        """Suffix that is appended to the resource's name for the child's name."""
        return _SUFFIXES[self.role]

    @property
    def label(self) -> str:
        """Kind and suffix, unique among the children of one resource."""
        return self.kind + self.suffix

    def named(self, resource: str) -> str:
        """Return the child's name."""
        return resource + self.suffix

    def resource_name(self, name: str) -> str:
        """Return the name of the resource whose child has this name."""
        return name.removesuffix(self.suffix)


SERVICE_ACCOUNT = Child("ServiceAccount", "v1", "serviceaccounts")
NETWORK_POLICY = Child("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies")
SERVICE = Child("Service", "v1", "services")
PEERS = Child("Service", "v1", "services", Role.PEERS)
DISRUPTION_BUDGET = Child("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets")
DEPLOYMENT = Child("Deployment", "apps/v1", "deployments")
CANDIDATE_POLICY = Child("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies", Role.CANDIDATE)
CANDIDATE_SERVICE = Child("Service", "v1", "services", Role.CANDIDATE)
CANDIDATE = Child("Deployment", "apps/v1", "deployments", Role.CANDIDATE)
INGRESS = Child("Ingress", "networking.k8s.io/v1", "ingresses")
HTTP_ROUTE = Child("HTTPRoute", "gateway.networking.k8s.io/v1", "httproutes")
HPA = Child("HorizontalPodAutoscaler", HPA_API_VERSION, "horizontalpodautoscalers")
SCALED_OBJECT = Child("ScaledObject", SCALED_OBJECT_API_VERSION, "scaledobjects")

ENDPOINT_SLICE = Child("EndpointSlice", "discovery.k8s.io/v1", "endpointslices", Role.ACTIVATOR)
"""Kubernetes creates the Service's EndpointSlices.

The operator creates one with the Service's name, for the activator.
"""

_SCALERS = (HPA, SCALED_OBJECT)
# The policy first, so that no pod is open without it.
CANDIDATE_CHILDREN = (CANDIDATE_POLICY, CANDIDATE_SERVICE, CANDIDATE)
"""Children of a rollout that compares a candidate."""
READ_CHILDREN = (
    SERVICE_ACCOUNT,
    NETWORK_POLICY,
    SERVICE,
    PEERS,
    DISRUPTION_BUDGET,
    DEPLOYMENT,
    INGRESS,
    HTTP_ROUTE,
    *_SCALERS,
    *CANDIDATE_CHILDREN,
)
"""Children that are read by name: `read_children` returns those of one resource."""
# The EndpointSlice before the Deployment: the activator must be an endpoint before the last pod stops.
WRITTEN_CHILDREN = (
    SERVICE_ACCOUNT,
    NETWORK_POLICY,
    SERVICE,
    PEERS,
    ENDPOINT_SLICE,
    DISRUPTION_BUDGET,
    DEPLOYMENT,
    INGRESS,
    HTTP_ROUTE,
    *_SCALERS,
    *CANDIDATE_CHILDREN,
)
"""Children that are written, in this order."""


def read_children(resource: Json) -> list[Child]:
    """Return the children that a reconciliation of a resource reads by name.

    Those of a candidate are read only with a strategy that has candidates, and until the status shows that they are
    removed.
    """
    # Of any type, as the API server does not validate objects that are older than the schema.
    spec, status = resource.get("spec"), resource.get("status")
    rollout = spec.get("rollout") if isinstance(spec, dict) else None
    strategy = rollout.get("strategy") if isinstance(rollout, dict) else None
    with_candidate = strategy not in (None, RolloutStrategy.ROLLING) or (
        isinstance(status, dict) and "rollout" in status
    )
    return [child for child in READ_CHILDREN if with_candidate or child.role is not Role.CANDIDATE]


def resource_names(kind: str, name: str) -> list[str]:
    """Return the names of the resources that may have a child of this kind and name."""
    children = [child for child in READ_CHILDREN if child.kind == kind and name.endswith(child.suffix)]
    return list(dict.fromkeys(child.resource_name(name) for child in children))


def desired_objects(target: Target) -> dict[Child, Json]:
    """Return the desired objects; children of other kinds are deleted."""
    objects = {
        **({NETWORK_POLICY: make_network_policy(target)} if target.restricted else {}),
        SERVICE: make_service(target),
        **({PEERS: make_peers_service(target)} if target.finds_peers else {}),
        DISRUPTION_BUDGET: make_disruption_budget(target),
        DEPLOYMENT: make_deployment(target),
    }
    if target.spec.pod.service_account_name is None:
        objects = {SERVICE_ACCOUNT: make_service_account(target), **objects}
    # The activator does not have the service's certificate.
    if target.hosting is not None and target.hosting.open and not target.spec.tls:
        objects[ENDPOINT_SLICE] = make_activator_slice(target, target.hosting)
    route = target.spec.route
    if route and route.ingress:
        objects[INGRESS] = make_ingress(target, route.ingress)
    if route and route.http_route:
        objects[HTTP_ROUTE] = make_http_route(target, route.http_route)
    scaling = target.spec.scaling
    if scaling and scaling.external and scaling.external.horizontal_pod_autoscaler:
        objects[HPA] = make_horizontal_pod_autoscaler(target, scaling, scaling.external.horizontal_pod_autoscaler)
    if scaling and scaling.external and scaling.external.scaled_object:
        objects[SCALED_OBJECT] = make_scaled_object(target, scaling, scaling.external.scaled_object)
    return {**objects, **_candidate_objects(target)}


def _candidate_objects(target: Target) -> dict[Child, Json]:
    """Return the objects of a candidate.

    The Service and the NetworkPolicy exist as long as the strategy has candidates: a stopping pod must not lose its
    policy.
    """
    if not target.candidate and not (target.judges and target.finds_candidates):
        return {}
    candidate = target.candidate or replace(target, candidate_replicas=0)
    return {
        **({CANDIDATE_POLICY: make_candidate_policy(target, candidate)} if target.restricted else {}),
        CANDIDATE_SERVICE: make_candidate_service(candidate),
        **({CANDIDATE: make_deployment(candidate)} if target.candidate else {}),
    }
