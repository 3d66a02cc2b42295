"""The objects that every cluster has from the start."""

from typing import Any

Object = dict[str, Any]
NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_RBAC = "rbac.authorization.k8s.io"
_AUTHENTICATED, _EVERYONE = "system:authenticated", "system:unauthenticated"
_REVIEW = {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews"], "verbs": ["create"]}
_PUBLIC = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"]


def first_objects() -> list[Object]:
    """Return them in the order in which they can be created."""
    return [
        *(namespace(name) for name in NAMESPACES),
        *_role("cluster-admin", [_all(), _paths(["*"], ["*"])], "system:masters"),
        *_role("system:public-info-viewer", [_paths(_PUBLIC)], _AUTHENTICATED, _EVERYONE),
        *_role("system:discovery", [_paths(_PUBLIC + _DISCOVERY)], _AUTHENTICATED),
        *_role("system:basic-user", [_REVIEW], _AUTHENTICATED),
    ]


def namespace(name: str) -> Object:
    """Return a Namespace as a client would send it."""
    return {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}


def service_account(in_namespace: str) -> Object:
    """Return the account that pods of a namespace run as unless they name another."""
    meta = {"name": "default", "namespace": in_namespace}
    return {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": meta}


def root_certificate(in_namespace: str, authority: str) -> Object:
    """Return the ConfigMap by which pods know the server: its authority's certificate, PEM."""
    meta = {"name": "kube-root-ca.crt", "namespace": in_namespace}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta, "data": {"ca.crt": authority}}


def _all() -> Object:
    return {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


def _paths(paths: list[str], verbs: list[str] | None = None) -> Object:
    return {"nonResourceURLs": paths, "verbs": verbs or ["get"]}


def _role(name: str, rules: list[Object], *groups: str) -> list[Object]:
    head = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": name}}
    subjects = [{"kind": "Group", "apiGroup": _RBAC, "name": group} for group in groups]
    ref = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name}
    return [
        {**head, "kind": "ClusterRole", "rules": rules},
        {**head, "kind": "ClusterRoleBinding", "roleRef": ref, "subjects": subjects},
    ]
