"""The built-in kinds, as one table. What is not here is not served; a definition can add it as a custom kind."""

from typing import Any

from shoal_local.apiserver.kinds.resource import Resource

EVENTS = "/events"


def _core(kind: str, plural: str, **more: Any) -> Resource:
    return Resource("", "v1", kind, plural, definition=f"io.k8s.api.core.v1.{kind}", **more)


def _in(group: str, kind: str, plural: str, **more: Any) -> Resource:
    definition = f"io.k8s.api.{group.partition('.')[0]}.v1.{kind}"
    return Resource(group, "v1", kind, plural, **{"definition": definition, **more})


_APPS = {"categories": ("all",), "subresources": ("scale", "status"), "generation": True}
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT_FIELDS = (*(f"involvedObject.{f}" for f in _INVOLVED), "reason", "type", "source")
_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_RBAC = "rbac.authorization.k8s.io"
_EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"

BUILTIN: tuple[Resource, ...] = (
    _core("ConfigMap", "configmaps", short_names=("cm",)),
    _core("Endpoints", "endpoints", short_names=("ep",)),
    _core("Event", "events", short_names=("ev",), selectable=_EVENT_FIELDS),
    _core(
        "Namespace",
        "namespaces",
        namespaced=False,
        short_names=("ns",),
        subresources=("status",),
        selectable=("status.phase",),
    ),
    _core(
        "Node",
        "nodes",
        namespaced=False,
        short_names=("no",),
        subresources=("status",),
        selectable=("spec.unschedulable",),
    ),
    _core("PersistentVolumeClaim", "persistentvolumeclaims", short_names=("pvc",), subresources=("status",)),
    _core(
        "Pod",
        "pods",
        short_names=("po",),
        categories=("all",),
        subresources=("binding", "log", "portforward", "status"),
        generation=True,
        selectable=_POD_FIELDS,
    ),
    _core("Secret", "secrets", selectable=("type",)),
    _core(
        "Service",
        "services",
        short_names=("svc",),
        categories=("all",),
        subresources=("status",),
        selectable=("spec.clusterIP", "spec.type"),
    ),
    _core("ServiceAccount", "serviceaccounts", short_names=("sa",), subresources=("token",)),
    _in("apps", "Deployment", "deployments", short_names=("deploy",), **_APPS),
    _in("apps", "ReplicaSet", "replicasets", short_names=("rs",), selectable=("status.replicas",), **_APPS),
    _in(
        "authorization.k8s.io",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        namespaced=False,
        verbs=("create",),
    ),
    _in("coordination.k8s.io", "Lease", "leases"),
    _in("discovery.k8s.io", "EndpointSlice", "endpointslices", generation=True),
    _in("networking.k8s.io", "Ingress", "ingresses", short_names=("ing",), subresources=("status",), generation=True),
    _in("networking.k8s.io", "IngressClass", "ingressclasses", namespaced=False, generation=True),
    _in("networking.k8s.io", "NetworkPolicy", "networkpolicies", short_names=("netpol",), generation=True),
    _in(
        "policy",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        short_names=("pdb",),
        subresources=("status",),
        generation=True,
    ),
    _in(
        "scheduling.k8s.io", "PriorityClass", "priorityclasses", namespaced=False, short_names=("pc",), generation=True
    ),
    _in(_RBAC, "ClusterRole", "clusterroles", namespaced=False),
    _in(_RBAC, "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    _in(_RBAC, "Role", "roles"),
    _in(_RBAC, "RoleBinding", "rolebindings"),
    _in(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=("status",),
        generation=True,
        definition=f"{_EXTENSIONS}.CustomResourceDefinition",
    ),
)
