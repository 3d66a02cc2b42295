"""Defaults of the built-in kinds that depend on other fields; ``defaults.yaml`` has the constant ones.

Each function sets those of one kind, in place.
"""

import base64
from collections.abc import Callable, Mapping

from shoal_local.apiserver.kinds.registry import NAMESPACES, PODS, SERVICES
from shoal_local.apiserver.schemas.custom import with_defaults
from shoal_local.apiserver.schemas.node import Node
from shoal_local.objects import Object

MAX_INT32 = 2**31 - 1
RBAC = "rbac.authorization.k8s.io"


def defaulted(key: str, obj: Object, node: Node) -> Object:
    """Return an object with its defaults; ``key`` is the storage key of its kind."""
    found: Object = with_defaults(obj, node)
    if key in DEFAULTS:
        DEFAULTS[key](found)
    return found


def _pod_spec(spec: Object) -> None:
    if "serviceAccountName" in spec:
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        tag = container.get("image", "").rpartition("/")[2]
        pinned = "@" in tag or (":" in tag and not tag.endswith(":latest"))
        container.setdefault("imagePullPolicy", "IfNotPresent" if pinned else "Always")
    for volume in spec.get("volumes", []):
        # A volume without a source is an emptyDir.
        if set(volume) == {"name"}:
            volume["emptyDir"] = {}


def _pod(pod: Object) -> None:
    spec = pod["spec"]
    # Not in a template.
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    _pod_spec(spec)
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        # A limit is the default of the request.
        resources = container["resources"]
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **resources.get("requests", {})}


def _namespace(obj: Object) -> None:
    # Network policies select namespaces by this label.
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def _secret(obj: Object) -> None:
    # Write-only: Kubernetes stores it encoded in `data`.
    texts = obj.pop("stringData", {})
    if texts:
        made = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        obj["data"] = {**obj.get("data", {}), **made}


def _service(obj: Object) -> None:
    spec = obj["spec"]
    for port in spec.get("ports", []):
        port.setdefault("targetPort", port["port"])
    if spec["type"] == "ExternalName":
        return
    spec.setdefault("internalTrafficPolicy", "Cluster")
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if spec["type"] != "ClusterIP":
        spec.setdefault("externalTrafficPolicy", "Cluster")


def _workload(obj: Object) -> None:
    _pod_spec(obj["spec"]["template"]["spec"])
    # Only a Deployment has a strategy.
    strategy = obj["spec"].get("strategy", {})
    if strategy.get("type") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {"maxSurge": "25%", "maxUnavailable": "25%"})


def _job(obj: Object) -> None:
    spec, meta = obj["spec"], obj["metadata"]
    # Without either field, the Job runs one pod once.
    if "parallelism" not in spec:
        spec.setdefault("completions", 1)
    spec.setdefault("parallelism", 1)
    # A Job with limits per index has no limit for the whole Job by default.
    spec.setdefault("backoffLimit", MAX_INT32 if "backoffLimitPerIndex" in spec else 6)
    template = spec["template"]
    _pod_spec(template["spec"])
    if not spec["manualSelector"]:
        own = {"controller-uid": meta["uid"], "job-name": meta["name"]}
        own |= {f"batch.kubernetes.io/{key}": value for key, value in own.items()}
        template["metadata"]["labels"] = template["metadata"].get("labels", {}) | own
        spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}})
    if not meta.get("labels"):
        meta["labels"] = dict(template["metadata"].get("labels", {}))


def _network_policy(obj: Object) -> None:
    obj["spec"].setdefault("policyTypes", ["Ingress", "Egress"] if obj["spec"].get("egress") else ["Ingress"])


def _binding(obj: Object) -> None:
    for subject in obj.get("subjects", []):
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", RBAC)


def _definition(obj: Object) -> None:
    names = obj["spec"]["names"]
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", names["kind"] + "List")


DEFAULTS: Mapping[str, Callable[[Object], None]] = {
    NAMESPACES: _namespace,
    PODS: _pod,
    "/secrets": _secret,
    SERVICES: _service,
    "apps/deployments": _workload,
    "apps/replicasets": _workload,
    "apiextensions.k8s.io/customresourcedefinitions": _definition,
    "batch/jobs": _job,
    "networking.k8s.io/networkpolicies": _network_policy,
    f"{RBAC}/clusterrolebindings": _binding,
    f"{RBAC}/rolebindings": _binding,
}
