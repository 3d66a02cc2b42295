"""Defaults of the built-in kinds: one function per kind, which modifies the new object in place."""

import base64
from collections.abc import Callable, Mapping

from shoal_local.objects import Object

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_MODES = ("secret", "configMap", "projected", "downwardAPI")

MAX_INT32 = 2**31 - 1
RBAC = "rbac.authorization.k8s.io"


def template_defaults(spec: Object) -> None:
    """Set the defaults of a pod spec, in a pod or a template."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if "serviceAccountName" in spec:
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        tag = container.get("image", "").rpartition("/")[2]
        pinned = "@" in tag or (":" in tag and not tag.endswith(":latest"))
        container.setdefault("imagePullPolicy", "IfNotPresent" if pinned else "Always")
        container.setdefault("resources", {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        for port in container.get("ports", []):
            port.setdefault("protocol", "TCP")
        for name in _PROBES:
            if name in container:
                # The probe's own fields keep their order and their values.
                probe = container[name] = {**container[name], **_PROBE_DEFAULTS, **container[name]}
                if "httpGet" in probe:
                    probe["httpGet"] = {"path": "/", "scheme": "HTTP", **probe["httpGet"]}
        for variable in container.get("env", []):
            if reference := variable.get("valueFrom", {}).get("fieldRef"):
                reference.setdefault("apiVersion", "v1")
    for volume in spec.get("volumes", []):
        # A volume without a source is an emptyDir.
        if set(volume) == {"name"}:
            volume["emptyDir"] = {}
        for source in _MODES:
            if source in volume:
                volume[source].setdefault("defaultMode", 0o644)
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")


def pod_defaults(pod: Object) -> None:
    """Set the defaults of a pod: account, spec, resource requests, phase."""
    spec = pod["spec"]
    spec.setdefault("serviceAccountName", "default")
    template_defaults(spec)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        # A limit is the default of the request.
        resources = container["resources"]
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **resources.get("requests", {})}
    pod["status"] = {"phase": "Pending", **pod.get("status", {})}


def apply_defaults(key: str, obj: Object) -> None:
    """Set the defaults of an object whose kind has this storage key."""
    if key in DEFAULTS:
        DEFAULTS[key](obj)


def _namespace(obj: Object) -> None:
    labels = obj["metadata"].setdefault("labels", {})
    # Network policies select namespaces by this label.
    labels["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj["status"] = {"phase": "Active", **obj.get("status", {})}


def _secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    # Write-only: Kubernetes stores it encoded in `data`.
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


def _job(obj: Object) -> None:
    spec, meta = obj["spec"], obj["metadata"]
    # Without either field, the Job runs one pod once.
    if "parallelism" not in spec:
        spec.setdefault("completions", 1)
    retried = MAX_INT32 if "backoffLimitPerIndex" in spec else 6
    # A Job with limits per index has no limit for the whole Job by default.
    given = {"parallelism": 1, "backoffLimit": retried, "completionMode": "NonIndexed", "suspend": False}
    given |= {"manualSelector": False, "podReplacementPolicy": "TerminatingOrFailed"}
    for name, value in given.items():
        spec.setdefault(name, value)
    template = spec["template"]
    template_defaults(template.setdefault("spec", {}))
    if not spec["manualSelector"]:
        own = {"controller-uid": meta["uid"], "job-name": meta["name"]}
        own |= {f"batch.kubernetes.io/{key}": value for key, value in own.items()}
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        template["metadata"]["labels"] = labels | own
        spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}})
    if not meta.get("labels"):
        meta["labels"] = dict(template.get("metadata", {}).get("labels", {}))


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
    "/pods": pod_defaults,
    "/secrets": _secret,
    "/services": _service,
    "apps/deployments": _deployment,
    "apps/replicasets": _workload,
    "apiextensions.k8s.io/customresourcedefinitions": _definition,
    "batch/jobs": _job,
    "discovery.k8s.io/endpointslices": _endpoint_slice,
    "networking.k8s.io/networkpolicies": _network_policy,
    f"{RBAC}/clusterrolebindings": _binding,
    f"{RBAC}/rolebindings": _binding,
}
