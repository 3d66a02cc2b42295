"""Discovery: what groups, versions, kinds and verbs there are, a document for each group version.

Clients that ask for all in one document (``as=APIGroupDiscoveryList``) take these instead: here that costs 30 ms, once.
"""

from dataclasses import dataclass
from typing import Any

from shoal_local.apiserver.discovery import openapi
from shoal_local.apiserver.kinds.registry import Registry
from shoal_local.apiserver.kinds.resource import SUBRESOURCE_KINDS, SUBRESOURCE_VERBS, Resource

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
# Asked for with an @, which is no media type: the answer names it with a dot.
OPENAPI_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
HEALTH = ("healthz", "livez", "readyz")


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
        own = (resource.group, resource.version, resource.kind)
        group, version, kind = SUBRESOURCE_KINDS.get(name, own)
        about = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
        served = {"kind": kind, "verbs": list(SUBRESOURCE_VERBS[name])}
        named = {"group": group, "version": version} if name in SUBRESOURCE_KINDS else {}
        subs.append({**about, **named, **served})
    return [{key: value for key, value in main.items() if value != []}, *subs]


@dataclass(frozen=True, slots=True)
class Page:
    """A document and its media type; text and bytes are sent as they are."""

    body: Any
    media_type: str = JSON


def page(registry: Registry, definitions: openapi.Definitions, path: str, accept: str) -> Page | None:
    """Return the document at a path, or None when no document is there."""
    parts = path.strip("/").split("/")
    match parts:
        case [name, *_] if name in HEALTH:
            return Page("ok", "text/plain")
        case ["version"]:
            return Page(VERSION)
        case ["openapi", "v2"] if accept.startswith(OPENAPI_PROTOBUF):
            return Page(openapi.version_2_in_protobuf(), OPENAPI_PROTOBUF.replace("@", "."))
        case ["openapi", *rest]:
            return _openapi(registry, definitions, rest)
        case _:
            return _of_group(registry, parts)


def _of_group(registry: Registry, parts: list[str]) -> Page | None:
    match parts:
        case ["api"]:
            return Page({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
        case ["apis"]:
            return Page(groups(registry))
        case ["apis", name] if name in registry.groups:
            return Page(group(registry, name))
        case ["api", version] if version in registry.groups[""]:
            return Page(resources(registry, "", version))
        case ["apis", name, version] if version in registry.groups.get(name, []):
            return Page(resources(registry, name, version))
        case _:
            return None


def _openapi(registry: Registry, definitions: openapi.Definitions, rest: list[str]) -> Page | None:
    match rest:
        case ["v3"]:
            return Page(openapi.index(registry))
        case ["v3", "api", version] if version in registry.groups[""]:
            return Page(openapi.document(registry, definitions, "", version))
        case ["v3", "apis", group, version] if version in registry.groups.get(group, []):
            return Page(openapi.document(registry, definitions, group, version))
        case _:
            return None
