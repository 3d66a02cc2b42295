"""API kinds: names, scope, verbs, subresources, columns; a table of built-in kinds, and custom kinds."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal_local.apiserver.errors import no_such_path
from shoal_local.objects import Object

ALL_VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")
SUBRESOURCE_VERBS: Mapping[str, tuple[str, ...]] = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "log": ("get",),
    "portforward": ("create", "get"),
    "binding": ("create",),
    "eviction": ("create",),
    "token": ("create",),
}
SUBRESOURCE_KINDS: Mapping[str, tuple[str, str, str]] = {
    "scale": ("autoscaling", "v1", "Scale"),
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "portforward": ("", "v1", "PodPortForwardOptions"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
"""Group, version and kind of subresources that differ from their object's kind."""


class Column(msgspec.Struct, frozen=True, rename="camel"):
    """A printer column; ``json_path`` is that of a custom kind."""

    name: str
    json_path: str = ""
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""


class ScalePaths(msgspec.Struct, frozen=True):
    """Field paths of a kind's scale subresource, such as ``.spec.replicas``."""

    spec: str = msgspec.field(default=".spec.replicas", name="specReplicasPath")
    status: str = msgspec.field(default=".status.replicas", name="statusReplicasPath")
    selector: str = msgspec.field(default="", name="labelSelectorPath")


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as one API version serves it."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    generation: bool = False
    """Whether metadata.generation counts changes outside of metadata and status."""
    definition: str = ""
    """Name of the OpenAPI definition of a built-in kind; empty for a custom kind."""
    schema: Mapping[str, Any] | None = None
    """Structural schema of a custom kind."""
    columns: tuple[Column, ...] = ()
    scale: ScalePaths = field(default_factory=ScalePaths)
    selectable: tuple[str, ...] = ()
    """Dotted fields for field selectors, beside metadata.name and metadata.namespace."""
    since: int = 0
    """Revision of the last write of a custom kind's definition: older objects may not fit its schema."""
    singular: str = ""
    list_kind: str = ""
    """Kind of a list, such as ``PodList``."""

    @property
    def api_version(self) -> str:
        """Return the apiVersion: ``apps/v1``, or ``v1`` in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of the list when ``name`` is empty."""
        prefix = "/apis" if self.group else "/api"
        space = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{prefix}/{self.api_version}{space}/{self.plural}{tail}"

    @property
    def key(self) -> str:
        """Return the storage key, which is the same for all versions of the kind."""
        return f"{self.group}/{self.plural}"

    @property
    def custom(self) -> bool:
        """Return whether a CustomResourceDefinition defines this kind."""
        return not self.definition


# Storage keys of kinds with rules of their own.
ACCOUNTS, EVENTS, NAMESPACES = "/serviceaccounts", "/events", "/namespaces"
NODES, PODS, SERVICES = "/nodes", "/pods", "/services"
_RBAC = "rbac.authorization.k8s.io"
_EXTENSIONS = "apiextensions.k8s.io"
_PACKAGES = {"": "io.k8s.api.core", _EXTENSIONS: "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions"}


def definition_of(group: str, kind: str) -> str:
    """Return the name of the OpenAPI definition of a built-in kind."""
    # Most packages are named after the first label of the group.
    package = _PACKAGES.get(group) or f"io.k8s.api.{group.partition('.')[0]}"
    return f"{package}.v1.{kind}"


def _in(group: str, kind: str, plural: str, short: str = "", subresources: str = "", **more: Any) -> Resource:
    named: dict[str, Any] = {"short_names": tuple(short.split()), "subresources": tuple(subresources.split())}
    named |= {"definition": definition_of(group, kind), "singular": kind.lower(), "list_kind": f"{kind}List"}
    return Resource(group, "v1", kind, plural, **named, **more)


# Arguments that several kinds share.
_CLUSTER: dict[str, Any] = {"namespaced": False}
_ALL: dict[str, Any] = {"categories": ("all",)}
_COUNTED: dict[str, Any] = {"generation": True}
_DEFINING: dict[str, Any] = {"categories": ("api-extensions",), **_CLUSTER, **_COUNTED}
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT_FIELDS = (*(f"involvedObject.{f}" for f in _INVOLVED), "reason", "type", "source")
_POD_SPEC = ("nodeName", "restartPolicy", "schedulerName", "serviceAccountName", "hostNetwork")
_POD_FIELDS = (*(f"spec.{f}" for f in _POD_SPEC), "status.phase", "status.podIP", "status.nominatedNodeName")

BUILTIN: tuple[Resource, ...] = (
    _in("", "ConfigMap", "configmaps", "cm"),
    _in("", "Endpoints", "endpoints", "ep"),
    _in("", "Event", "events", "ev", selectable=_EVENT_FIELDS),
    _in("", "Namespace", "namespaces", "ns", "status", selectable=("status.phase",), **_CLUSTER),
    _in("", "Node", "nodes", "no", "status", selectable=("spec.unschedulable",), **_CLUSTER),
    _in("", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", "status"),
    _in("", "Pod", "pods", "po", "binding eviction log portforward status", selectable=_POD_FIELDS, **_ALL, **_COUNTED),
    _in("", "Secret", "secrets", selectable=("type",)),
    _in("", "Service", "services", "svc", "status", selectable=("spec.clusterIP", "spec.type"), **_ALL),
    _in("", "ServiceAccount", "serviceaccounts", "sa", "token"),
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
    _in(_EXTENSIONS, "CustomResourceDefinition", "customresourcedefinitions", "crd crds", "status", **_DEFINING),
)
BY_KIND = {resource.kind: resource for resource in BUILTIN}


CRDS = f"{_EXTENSIONS}/customresourcedefinitions"


def resources_of(crd: Object) -> list[Resource]:
    """Return a CRD's served versions as resources, in discovery order."""

    def priority(version: Object) -> tuple[int, int, int, str]:
        found = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version["name"])
        if not found:
            return (3, 0, 0, version["name"])
        stage = {None: 0, "beta": 1, "alpha": 2}[found[2]]
        return (stage, -int(found[1]), -int(found[3] or 0), version["name"])

    spec, names, resources = crd["spec"], crd["spec"]["names"], []
    for version in sorted((v for v in spec["versions"] if v.get("served")), key=priority):
        subresources = version.get("subresources") or {}
        resource = Resource(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=tuple(sorted(subresources)),
            generation=True,
            schema=(version.get("schema") or {}).get("openAPIV3Schema"),
            columns=msgspec.convert(version.get("additionalPrinterColumns") or (), tuple[Column, ...]),
            scale=msgspec.convert(subresources.get("scale") or {}, ScalePaths),
            selectable=tuple(f["jsonPath"].lstrip(".") for f in version.get("selectableFields") or ()),
            since=int(crd["metadata"].get("resourceVersion", 0)),
            singular=names.get("singular") or names["kind"].lower(),
            list_kind=names.get("listKind") or f"{names['kind']}List",
        )
        resources.append(resource)
    return resources


@dataclass(frozen=True, slots=True)
class Registry:
    """The served kinds by group, version and plural."""

    resources: dict[tuple[str, str, str], Resource]

    @classmethod
    def of(cls, definitions: Iterable[Object]) -> "Registry":
        """Return a registry of the built-in kinds and the kinds of these CRDs."""
        # Built-in kinds precede custom ones in discovery.
        custom = [resource for crd in definitions for resource in resources_of(crd)]
        return cls({(r.group, r.version, r.plural): r for r in (*BUILTIN, *custom)})

    def find(self, group: str, version: str, plural: str) -> Resource:
        """Return a kind by its plural name. Raises ApiError: 404, not served."""
        try:
            return self.resources[group, version, plural]
        except KeyError:
            raise no_such_path() from None

    def by_kind(self, api_version: str, kind: str) -> Resource | None:
        """Return a kind by apiVersion and name, or None if it is not served."""
        return next((r for r in self.resources.values() if r.kind == kind and r.api_version == api_version), None)

    def in_version(self, group: str, version: str) -> list[Resource]:
        """Return the kinds of one group version, sorted by plural."""
        found = [r for r in self.resources.values() if (r.group, r.version) == (group, version)]
        return sorted(found, key=lambda r: r.plural)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Return the versions of each group, the preferred version first; the core group is ''."""
        found: dict[str, list[str]] = {}
        for group, version, _ in self.resources:
            if version not in found.setdefault(group, []):
                found[group].append(version)
        return found

    @property
    def stored(self) -> dict[str, Resource]:
        """Return each listable kind in its preferred version.

        The key is the storage key, such as ``apps/deployments``, which all versions of a kind share.
        """
        # The preferred version comes first, so in reverse order it wins.
        return {r.key: r for r in reversed(self.resources.values()) if "list" in r.verbs}
