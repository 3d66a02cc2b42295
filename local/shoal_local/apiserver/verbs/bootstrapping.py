"""The initial objects of every cluster."""

from datetime import datetime

import orjson

from shoal_local.apiserver.access.rbac import User
from shoal_local.apiserver.verbs.call import Call, Target
from shoal_local.apiserver.verbs.state import ClusterState
from shoal_local.apiserver.verbs.writing import create
from shoal_local.objects import Object, key_of

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_RBAC = "rbac.authorization.k8s.io"
_AUTHENTICATED, _EVERYONE = "system:authenticated", "system:unauthenticated"
_REVIEW = {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews"], "verbs": ["create"]}
_EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
_PUBLIC = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"]


def first_objects() -> list[Object]:
    """Return the initial objects in the order in which they can be created."""
    return [
        *(namespace(name) for name in NAMESPACES),
        *_role("cluster-admin", [_EVERYTHING, _paths(["*"], ["*"])], "system:masters"),
        *_role("system:public-info-viewer", [_paths(_PUBLIC)], _AUTHENTICATED, _EVERYONE),
        *_role("system:discovery", [_paths(_PUBLIC + _DISCOVERY)], _AUTHENTICATED),
        *_role("system:basic-user", [_REVIEW], _AUTHENTICATED),
    ]


def namespace(name: str) -> Object:
    """Return a Namespace as a client would send it."""
    return {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}


def _paths(paths: list[str], verbs: list[str] | None = None) -> Object:
    # A rule for paths that are no resources.
    return {"nonResourceURLs": paths, "verbs": verbs or ["get"]}


def _role(name: str, rules: list[Object], *groups: str) -> list[Object]:
    head = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": name}}
    subjects = [{"kind": "Group", "apiGroup": _RBAC, "name": group} for group in groups]
    ref = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name}
    return [
        {**head, "kind": "ClusterRole", "rules": rules},
        {**head, "kind": "ClusterRoleBinding", "roleRef": ref, "subjects": subjects},
    ]


SYSTEM = User("system:apiserver", ("system:masters",))


def bootstrap(state: ClusterState, now: datetime) -> None:
    """Create the initial objects that are missing."""
    for obj in first_objects():
        resource = state.registry.by_kind(obj["apiVersion"], obj["kind"])
        assert resource
        # A restored store has them already.
        if state.store.get(resource.key, key_of(obj)) is None:
            target = Target(resource.group, resource.version, resource.plural, obj["metadata"].get("namespace", ""))
            create(state, Call("create", target, SYSTEM, now, body=orjson.dumps(obj), agent="apiserver"))
