"""What protects the pods: the PodDisruptionBudget and the NetworkPolicy."""

from shoal_operator.manifests.environment import ADMIN_PORT, HTTP_PORT
from shoal_operator.manifests.labels import make_object, selector_labels
from shoal_operator.manifests.target import Target
from shoal_schema.declaring import Json


def make_disruption_budget(target: Target) -> Json:
    """Return a budget of one pod at a time, which never blocks the drain of a node."""
    spec: Json = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector_labels(target.name)},
    }
    return make_object(target, "PodDisruptionBudget", "policy/v1", spec=spec)


def make_network_policy(target: Target) -> Json:
    """Return a policy that opens the inference ports to all and the admin port to the operator."""
    grpc = target.spec.proxy.grpc_port
    inference = [_port(HTTP_PORT), *([] if grpc is None else [_port(grpc)])]
    spec: Json = {
        "podSelector": {"matchLabels": selector_labels(target.name)},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": inference}, {"ports": [_port(ADMIN_PORT)], **_admin_peers(target)}],
    }
    return make_object(target, "NetworkPolicy", "networking.k8s.io/v1", spec=spec)


def _port(number: int) -> Json:
    return {"protocol": "TCP", "port": number}


def _admin_peers(target: Target) -> Json:
    names = target.defaults.admin_namespaces
    if not names:
        return {}
    values = sorted(names)
    match = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": values}
    return {"from": [{"namespaceSelector": {"matchExpressions": [match]}}]}
