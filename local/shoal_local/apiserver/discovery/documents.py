"""Discovery documents: groups, versions, kinds and verbs.

Each group version has its own document. The aggregated form (``as=APIGroupDiscoveryList``) is not served.
"""

from dataclasses import dataclass
from typing import Any

from shoal_local.apiserver.discovery import openapi
from shoal_local.apiserver.kinds.registry import Registry
from shoal_local.apiserver.kinds.resource import SUBRESOURCE_KINDS, SUBRESOURCE_VERBS

Document = dict[str, Any]
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

JSON = "application/json"
OPENAPI_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
"""Clients request it with an @, which is invalid in a media type: the response has a dot instead."""
HEALTH = ("healthz", "livez", "readyz")


def groups(registry: Registry) -> Document:
    """Return the document at ``/apis``."""
    listed = [group(registry, name) for name in registry.groups if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def group(registry: Registry, name: str) -> Document:
    """Return the document at ``/apis/<group>``: the versions of the group."""
    found = [{"groupVersion": f"{name}/{v}", "version": v} for v in registry.groups.get(name, [])]
    head = {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": found}
    return head | ({"preferredVersion": found[0]} if found else {})


def resources(registry: Registry, group: str, version: str) -> Document:
    """Return the document at ``/apis/<group>/<version>``."""
    listed: list[Document] = []
    for resource in registry.in_version(group, version):
        main = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
            "shortNames": list(resource.short_names),
            "categories": list(resource.categories),
        }
        listed.append({key: value for key, value in main.items() if value != []})
        for name in resource.subresources:
            # The status subresource has the kind of its object.
            own = (resource.group, resource.version, resource.kind)
            sub_group, sub_version, kind = SUBRESOURCE_KINDS.get(name, own)
            about = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
            served = {"kind": kind, "verbs": list(SUBRESOURCE_VERBS[name])}
            named = {"group": sub_group, "version": sub_version} if name in SUBRESOURCE_KINDS else {}
            listed.append({**about, **named, **served})
    group_version = f"{group}/{version}" if group else version
    head = {"kind": "APIResourceList", "apiVersion": "v1"}
    return {**head, "groupVersion": group_version, "resources": listed}


@dataclass(frozen=True, slots=True)
class Page:
    """A document and its media type; text and bytes are sent unchanged."""

    body: Any
    media_type: str = JSON


def page(registry: Registry, definitions: openapi.Definitions, path: str, accept: str) -> Page | None:
    """Return the document at a path, or None if the path has none."""
    parts = path.strip("/").split("/")
    body: Document
    match parts:
        case [name, *_] if name in HEALTH:
            return Page("ok", "text/plain")
        case ["openapi", "v2"] if accept.startswith(OPENAPI_PROTOBUF):
            return Page(openapi.version_2_in_protobuf(), OPENAPI_PROTOBUF.replace("@", "."))
        case ["version"]:
            body = VERSION
        case ["openapi", "v3"]:
            body = openapi.index(registry)
        case ["openapi", "v3", "api", version] if version in registry.groups[""]:
            body = openapi.document(registry, definitions, "", version)
        case ["openapi", "v3", "apis", name, version] if version in registry.groups.get(name, []):
            body = openapi.document(registry, definitions, name, version)
        case ["api"]:
            body = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            body = groups(registry)
        case ["apis", name] if name in registry.groups:
            body = group(registry, name)
        case ["api", version] if version in registry.groups[""]:
            body = resources(registry, "", version)
        case ["apis", name, version] if version in registry.groups.get(name, []):
            body = resources(registry, name, version)
        case _:
            return None
    return Page(body)
