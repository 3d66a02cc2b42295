"""Defaults of the built-in kinds: one function for each kind that has any.

They edit the fresh object they are given.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from shoal_local.apiserver.lifecycle.pods import pod_defaults, template_defaults

Object = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"


def apply_defaults(key: str, obj: Object) -> None:
    """Fill in the defaults of a built-in kind, by its storage key."""
    if key in DEFAULTS:
        DEFAULTS[key](obj)


def _namespace(obj: Object) -> None:
    labels = obj["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj["status"] = {"phase": "Active", **obj.get("status", {})}


def _secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    texts = obj.pop("stringData", {})
    if texts:
        made = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        obj["data"] = {**obj.get("data", {}), **made}


def _service(obj: Object) -> None:
    spec = obj["spec"]
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports", []):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
    if spec["type"] == "ExternalName":
        return
    spec.setdefault("internalTrafficPolicy", "Cluster")
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if spec["type"] != "ClusterIP":
        spec.setdefault("externalTrafficPolicy", "Cluster")
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def _workload(obj: Object) -> None:
    obj["spec"].setdefault("replicas", 1)
    template = obj["spec"].setdefault("template", {})
    template.setdefault("metadata", {})
    if "spec" in template:
        template_defaults(template["spec"])


def _deployment(obj: Object) -> None:
    _workload(obj)
    spec = obj["spec"]
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        bounds = strategy.setdefault("rollingUpdate", {})
        bounds.setdefault("maxSurge", "25%")
        bounds.setdefault("maxUnavailable", "25%")


def _network_policy(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    kinds = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    spec.setdefault("policyTypes", kinds)
    for rule in [*spec.get("ingress", []), *spec.get("egress", [])]:
        for port in rule.get("ports", []):
            port.setdefault("protocol", "TCP")


def _binding(obj: Object) -> None:
    obj.get("roleRef", {}).setdefault("apiGroup", RBAC)
    for subject in obj.get("subjects", []):
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", RBAC)


def _endpoint_slice(obj: Object) -> None:
    for port in obj.setdefault("ports", []):
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def _claim(obj: Object) -> None:
    obj["spec"].setdefault("volumeMode", "Filesystem")
    obj["status"] = {"phase": "Pending", **obj.get("status", {})}


def _definition(obj: Object) -> None:
    spec = obj["spec"]
    names = spec["names"]
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", names["kind"] + "List")
    spec.setdefault("conversion", {"strategy": "None"})
    for version in spec["versions"]:
        for column in version.get("additionalPrinterColumns", []):
            column.setdefault("type", "string")


DEFAULTS: Mapping[str, Callable[[Object], None]] = {
    "/namespaces": _namespace,
    "/persistentvolumeclaims": _claim,
    "/pods": pod_defaults,
    "/secrets": _secret,
    "/services": _service,
    "apps/deployments": _deployment,
    "apps/replicasets": _workload,
    "apiextensions.k8s.io/customresourcedefinitions": _definition,
    "discovery.k8s.io/endpointslices": _endpoint_slice,
    "networking.k8s.io/networkpolicies": _network_policy,
    f"{RBAC}/clusterrolebindings": _binding,
    f"{RBAC}/rolebindings": _binding,
}
