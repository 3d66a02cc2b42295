"""Discovery: what groups, versions, kinds and verbs there are.

In the old form, and in the aggregated one that gives all in two documents.
"""

from typing import Any

from shoal_local.apiserver.kinds.registry import Registry
from shoal_local.apiserver.kinds.resource import SUBRESOURCE_KINDS, SUBRESOURCE_VERBS, Resource

Document = dict[str, Any]
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERSION: Document = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.0+shoal.local",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "cpython",
    "platform": "linux/amd64",
}


def core_versions() -> Document:
    """Return the answer to ``/api``."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(registry: Registry) -> Document:
    """Return the answer to ``/apis``."""
    listed = [group(registry, name) for name in registry.groups if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def group(registry: Registry, name: str) -> Document:
    """Return the answer to ``/apis/<group>``; without versions when there is no such group."""
    found = [{"groupVersion": f"{name}/{v}", "version": v} for v in registry.groups.get(name, [])]
    head = {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": found}
    return head | ({"preferredVersion": found[0]} if found else {})


def resources(registry: Registry, group: str, version: str) -> Document:
    """Return the answer to ``/apis/<group>/<version>``."""
    listed = [doc for r in registry.in_version(group, version) for doc in _old_form(r)]
    group_version = f"{group}/{version}" if group else version
    head = {"kind": "APIResourceList", "apiVersion": "v1"}
    return {**head, "groupVersion": group_version, "resources": listed}


def _old_form(resource: Resource) -> list[Document]:
    main = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
    }
    subs = []
    for name in resource.subresources:
        group, version, kind = _response_kind(resource, name)
        about = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
        served = {"kind": kind, "verbs": list(SUBRESOURCE_VERBS[name])}
        named = {"group": group, "version": version} if name in SUBRESOURCE_KINDS else {}
        subs.append({**about, **named, **served})
    return [{key: value for key, value in main.items() if value != []}, *subs]


def _response_kind(resource: Resource, subresource: str) -> tuple[str, str, str]:
    own = (resource.group, resource.version, resource.kind)
    return SUBRESOURCE_KINDS.get(subresource, own)


def aggregated(registry: Registry, *, core: bool) -> Document:
    """Return every kind of the core group, or of all others, in one document."""
    names = [name for name in registry.groups if bool(name) != core]
    items = [_aggregated_group(registry, name) for name in names]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_group(registry: Registry, name: str) -> Document:
    versions = [
        {
            "version": version,
            "resources": [_aggregated(r) for r in registry.in_version(name, version)],
            "freshness": "Current",
        }
        for version in registry.groups[name]
    ]
    meta = {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None}
    return {"metadata": meta, "versions": versions}


def _aggregated(resource: Resource) -> Document:
    document = {
        "resource": resource.plural,
        "responseKind": _kind(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
        "subresources": [
            {
                "subresource": name,
                "responseKind": _kind(*_response_kind(resource, name)),
                "verbs": list(SUBRESOURCE_VERBS[name]),
            }
            for name in resource.subresources
        ],
    }
    return {key: value for key, value in document.items() if value != []}


def _kind(group: str, version: str, kind: str) -> Document:
    return {"group": group, "version": version, "kind": kind}
