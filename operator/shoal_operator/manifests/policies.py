"""The PodDisruptionBudget and the NetworkPolicy of a service."""

from shoal_operator.manifests.environment import ADMIN_PORT, HTTP_PORT
from shoal_operator.manifests.labels import make_object, selector_labels
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json, as_json

_NAMESPACE = "kubernetes.io/metadata.name"
"""The label of every namespace with its name."""


def make_disruption_budget(target: Target) -> Json:
    """Return a budget of one unavailable pod, which never blocks the drain of a node."""
    spec: Json = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector_labels(target)},
    }
    return make_object(target, "PodDisruptionBudget", "policy/v1", spec=spec)


def make_network_policy(target: Target) -> Json:
    """Return a policy that opens the inference ports to clients and the admin port to the operator.

    Probes come from the node, which policies cannot select; networks always admit a kubelet to its own pods.
    """
    # Requests arrive on the HTTP port, and on the gRPC port if there is one.
    grpc = target.spec.proxy.grpc_port
    inference = [_port(HTTP_PORT), *([] if grpc is None else [_port(grpc)])]
    # A rule without `from` admits every source.
    clients: Json = {}
    if named := as_json(target.spec.network_policy.from_):
        # Peers forward requests to one another, and the activator forwards those that it held.
        selector = target.defaults.activator_selector
        room = {
            "namespaceSelector": {"matchLabels": {_NAMESPACE: target.defaults.namespace}},
            "podSelector": {"matchLabels": dict(each.split("=", 1) for each in selector.split(",") if selector)},
        }
        peers = {"podSelector": {"matchLabels": selector_labels(target)}}
        clients = {"from": [*named, peers, *([room] if selector else ())]}
    return _policy(target, {"ports": inference, **clients})


def make_candidate_policy(target: Target, candidate: Target) -> Json:
    """Return a policy that opens a candidate's inference port to the stable pods, and its admin port to the operator.

    Args:
        target: the stable pods.
        candidate: the candidate's pods.
    """
    stable = {"podSelector": {"matchLabels": selector_labels(target)}}
    return _policy(candidate, {"ports": [_port(HTTP_PORT)], "from": [stable]})


def _policy(target: Target, inference: Json) -> Json:
    """Return a policy for the pods of a target.

    Args:
        target: the pods.
        inference: the rule about the inference ports.
    """
    admin: Json = {}
    if names := sorted(target.defaults.admin_namespaces):
        match = {"key": _NAMESPACE, "operator": "In", "values": names}
        admin = {"from": [{"namespaceSelector": {"matchExpressions": [match]}}]}
    spec: Json = {
        "podSelector": {"matchLabels": selector_labels(target)},
        "policyTypes": ["Ingress"],
        "ingress": [inference, {"ports": [_port(ADMIN_PORT)], **admin}],
    }
    return make_object(target, "NetworkPolicy", "networking.k8s.io/v1", spec=spec)


def _port(number: int) -> Json:
    return {"protocol": "TCP", "port": number}
