"""The table of built-in kinds. Other kinds are served only if a CustomResourceDefinition adds them."""

from typing import Any

from shoal_local.apiserver.kinds.resource import Resource

EVENTS = "/events"
_RBAC = "rbac.authorization.k8s.io"
_EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"


def _core(kind: str, plural: str, short: str = "", subresources: str = "", **more: Any) -> Resource:
    return _in("", kind, plural, short, subresources, definition=f"io.k8s.api.core.v1.{kind}", **more)


def _in(group: str, kind: str, plural: str, short: str = "", subresources: str = "", **more: Any) -> Resource:
    named = {"short_names": tuple(short.split()), "subresources": tuple(subresources.split())}
    # Definitions are named after the first label of the group.
    definition = f"io.k8s.api.{group.partition('.')[0]}.v1.{kind}"
    return Resource(group, "v1", kind, plural, **{"definition": definition, **named, **more})


# Arguments that several kinds share.
_CLUSTER: dict[str, Any] = {"namespaced": False}
_ALL: dict[str, Any] = {"categories": ("all",)}
_COUNTED: dict[str, Any] = {"generation": True}
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT_FIELDS = (*(f"involvedObject.{f}" for f in _INVOLVED), "reason", "type", "source")
_POD_SPEC = ("nodeName", "restartPolicy", "schedulerName", "serviceAccountName", "hostNetwork")
_POD_FIELDS = (*(f"spec.{f}" for f in _POD_SPEC), "status.phase", "status.podIP", "status.nominatedNodeName")

BUILTIN: tuple[Resource, ...] = (
    _core("ConfigMap", "configmaps", "cm"),
    _core("Endpoints", "endpoints", "ep"),
    _core("Event", "events", "ev", selectable=_EVENT_FIELDS),
    _core("Namespace", "namespaces", "ns", "status", selectable=("status.phase",), **_CLUSTER),
    _core("Node", "nodes", "no", "status", selectable=("spec.unschedulable",), **_CLUSTER),
    _core("PersistentVolumeClaim", "persistentvolumeclaims", "pvc", "status"),
    _core("Pod", "pods", "po", "binding eviction log portforward status", selectable=_POD_FIELDS, **_ALL, **_COUNTED),
    _core("Secret", "secrets", selectable=("type",)),
    _core("Service", "services", "svc", "status", selectable=("spec.clusterIP", "spec.type"), **_ALL),
    _core("ServiceAccount", "serviceaccounts", "sa", "token"),
    _in("apps", "Deployment", "deployments", "deploy", "scale status", **_ALL, **_COUNTED),
    _in("apps", "ReplicaSet", "replicasets", "rs", "scale status", selectable=("status.replicas",), **_ALL, **_COUNTED),
    _in("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews", verbs=("create",), **_CLUSTER),
    _in("batch", "Job", "jobs", subresources="status", **_ALL, **_COUNTED),
    _in("coordination.k8s.io", "Lease", "leases"),
    _in("discovery.k8s.io", "EndpointSlice", "endpointslices", **_COUNTED),
    _in("networking.k8s.io", "Ingress", "ingresses", "ing", "status", **_COUNTED),
    _in("networking.k8s.io", "IngressClass", "ingressclasses", **_CLUSTER, **_COUNTED),
    _in("networking.k8s.io", "NetworkPolicy", "networkpolicies", "netpol", **_COUNTED),
    _in("policy", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", "status", **_COUNTED),
    _in("scheduling.k8s.io", "PriorityClass", "priorityclasses", "pc", **_CLUSTER, **_COUNTED),
    _in(_RBAC, "ClusterRole", "clusterroles", **_CLUSTER),
    _in(_RBAC, "ClusterRoleBinding", "clusterrolebindings", **_CLUSTER),
    _in(_RBAC, "Role", "roles"),
    _in(_RBAC, "RoleBinding", "rolebindings"),
    Resource(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        definition=f"{_EXTENSIONS}.CustomResourceDefinition",
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=("status",),
        **_CLUSTER,
        **_COUNTED,
    ),
)
BY_KIND = {resource.kind: resource for resource in BUILTIN}
