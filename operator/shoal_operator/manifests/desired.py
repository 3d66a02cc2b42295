"""The desired objects of a service, in the order of writes."""

from dataclasses import dataclass

from shoal_operator.manifests.activator import make_activator_slice
from shoal_operator.manifests.deployment import make_deployment
from shoal_operator.manifests.policies import make_disruption_budget, make_network_policy
from shoal_operator.manifests.route import make_http_route, make_ingress
from shoal_operator.manifests.scaler import (
    HPA_API_VERSION,
    SCALED_OBJECT_API_VERSION,
    make_horizontal_pod_autoscaler,
    make_scaled_object,
)
from shoal_operator.manifests.service import make_peers_service, make_service, make_service_account
from shoal_operator.manifests.target import PEERS_SUFFIX, Target
from shoal_schema.declaring import Json


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that the operator creates for a service."""

    kind: str
    api_version: str
    plural: str
    suffix: str = ""
    """Appended to the service's name."""

    @property
    def label(self) -> str:
        """Kind and suffix, unique among the children."""
        return self.kind + self.suffix


SERVICE_ACCOUNT = Kind("ServiceAccount", "v1", "serviceaccounts")
NETWORK_POLICY = Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies")
SERVICE = Kind("Service", "v1", "services")
PEERS = Kind("Service", "v1", "services", PEERS_SUFFIX)
DISRUPTION_BUDGET = Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets")
DEPLOYMENT = Kind("Deployment", "apps/v1", "deployments")
INGRESS = Kind("Ingress", "networking.k8s.io/v1", "ingresses")
HTTP_ROUTE = Kind("HTTPRoute", "gateway.networking.k8s.io/v1", "httproutes")
HPA = Kind("HorizontalPodAutoscaler", HPA_API_VERSION, "horizontalpodautoscalers")
SCALED_OBJECT = Kind("ScaledObject", SCALED_OBJECT_API_VERSION, "scaledobjects")

ENDPOINT_SLICE = Kind("EndpointSlice", "discovery.k8s.io/v1", "endpointslices")
"""Kubernetes creates the Service's EndpointSlices.

The operator creates one with the Service's name, for the activator.
"""

_SCALERS = (HPA, SCALED_OBJECT)
CHILD_KINDS = (
    SERVICE_ACCOUNT,
    NETWORK_POLICY,
    SERVICE,
    PEERS,
    DISRUPTION_BUDGET,
    DEPLOYMENT,
    INGRESS,
    HTTP_ROUTE,
    *_SCALERS,
)
"""Kinds that are read by name."""
# The EndpointSlice before the Deployment: the activator must be an endpoint before the last pod stops.
WRITTEN_KINDS = (
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
)
"""Kinds that are written, in this order."""


def desired_objects(target: Target) -> dict[Kind, Json]:
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
    return objects
