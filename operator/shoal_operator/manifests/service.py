"""The Services and the ServiceAccount of an ``InferenceService``."""

from shoal_operator.manifests.environment import HTTP_PORT
from shoal_operator.manifests.labels import OPERATOR_ANNOTATION, POD_SPEC_ANNOTATION, make_object, selector_labels
from shoal_operator.manifests.revisions import pod_spec_text
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json


def make_service(target: Target) -> Json:
    """Return the Service in front of the proxies."""
    ports: list[Json] = [_port(target, target.service_port)]
    if (number := target.spec.proxy.grpc_port) is not None:
        # Istio reads the port's name, other implementations the appProtocol: HTTP/2 without or with TLS.
        protocol = "https" if target.spec.tls else "kubernetes.io/h2c"
        grpc = {"name": "grpc", "port": number, "targetPort": "grpc", "appProtocol": protocol}
        ports.append({**grpc, "protocol": "TCP"})
    asked = target.spec.service
    spec: Json = {"type": str(asked.type), "selector": selector_labels(target), "ports": ports}
    # Names the owner for other installs (planning/ownership).
    annotations = {**(asked.annotations or {}), OPERATOR_ANNOTATION: target.defaults.namespace}
    if target.held:
        annotations[POD_SPEC_ANNOTATION] = pod_spec_text(target.spec)
    return make_object(target, "Service", "v1", annotations=annotations, spec=spec)


def make_peers_service(target: Target) -> Json:
    """Return the headless Service by which proxies discover their peers."""
    return _discovery_service(target, target.peers_name)


def make_candidate_service(candidate: Target) -> Json:
    """Return the Service by which proxies discover the ready pods of a candidate.

    It is headless, except where the cluster's DNS has no addresses of pods: there, it has a single address.
    """
    return _discovery_service(candidate, candidate.candidate_name, headless=candidate.defaults.peers)


def _discovery_service(target: Target, name: str, *, headless: bool = True) -> Json:
    spec: Json = {
        "type": "ClusterIP",
        **({"clusterIP": "None"} if headless else {}),
        "selector": selector_labels(target),
        "ports": [_port(target, HTTP_PORT)],
    }
    return make_object(target, "Service", "v1", name=name, spec=spec)


def _port(target: Target, number: int) -> Json:
    # By name: during a change to TLS, pods without it must not be endpoints of the TLS port.
    scheme = target.scheme
    return {"name": scheme, "port": number, "targetPort": scheme, "appProtocol": scheme, "protocol": "TCP"}


def make_service_account(target: Target) -> Json:
    """Return a ServiceAccount without permissions and without a token."""
    return make_object(target, "ServiceAccount", "v1", automountServiceAccountToken=False)
