"""The Service and the ServiceAccount."""

from shoal_operator.manifests.environment import HTTP_PORT
from shoal_operator.manifests.labels import OPERATOR_ANNOTATION, make_object, selector_labels
from shoal_operator.manifests.target import Target
from shoal_schema.declaring import Json

SERVICE_PORT = 80


def make_service(target: Target) -> Json:
    """Return the Service in front of the proxies."""
    port = {"name": "http", "port": SERVICE_PORT, "targetPort": "http", "appProtocol": "http"}
    ports: list[Json] = [{**port, "protocol": "TCP"}]
    if (number := target.spec.proxy.grpc_port) is not None:
        # The name is what Istio reads, the protocol all else: HTTP/2 without TLS.
        grpc = {"name": "grpc", "port": number, "targetPort": "grpc", "appProtocol": "kubernetes.io/h2c"}
        ports.append({**grpc, "protocol": "TCP"})
    asked = target.spec.service
    spec: Json = {"type": str(asked.type), "selector": selector_labels(target.name), "ports": ports}
    # Other installs that see the name leave the InferenceService alone (planning/tenure).
    annotations = {**(asked.annotations or {}), OPERATOR_ANNOTATION: target.defaults.namespace}
    return make_object(target, "Service", "v1", annotations=annotations, spec=spec)


def make_siblings_service(target: Target) -> Json:
    """Return the headless Service by whose name proxies find one another: one address for each ready pod."""
    port = {"name": "http", "port": HTTP_PORT, "targetPort": "http", "appProtocol": "http", "protocol": "TCP"}
    spec: Json = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "selector": selector_labels(target.name),
        "ports": [port],
    }
    return make_object(target, "Service", "v1", name=target.siblings_name, spec=spec)


def make_service_account(target: Target) -> Json:
    """Return an account without permissions and without a token."""
    return make_object(target, "ServiceAccount", "v1", automountServiceAccountToken=False)
