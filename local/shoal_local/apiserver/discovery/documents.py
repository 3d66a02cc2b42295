"""Documents about the served kinds: discovery, and OpenAPI for `kubectl apply` and `kubectl explain`.

Each group version has its own documents. The aggregated form (``as=APIGroupDiscoveryList``) is not served. An OpenAPI
document lists the paths of a group version and all definitions that its kinds refer to. Each operation names its kind
and the options that kubectl checks for (``fieldValidation``, ``dryRun``).
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from shoal_local.apiserver.kinds.registry import SUBRESOURCE_KINDS, SUBRESOURCE_VERBS, Registry, Resource
from shoal_local.apiserver.schemas.node import root_of

Definitions = Mapping[str, Mapping[str, Any]]
Document = dict[str, Any]
_DEFS, _COMPONENTS = "#/$defs/", "#/components/schemas/"
_METHODS = {
    "get": ("get", "{name}"),
    "update": ("put", "{name}"),
    "patch": ("patch", "{name}"),
    "delete": ("delete", "{name}"),
    "list": ("get", ""),
    "create": ("post", ""),
}
_WRITES = ("create", "update", "patch")


def index(registry: Registry) -> Document:
    """Return the document at ``/openapi/v3``: one URL per group version.

    Each URL contains a hash, because clients cache a document until its URL changes. Hashing the inputs of a document
    costs less than building it.
    """
    paths = {}
    for group, versions in registry.groups.items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            # Built-in definitions never change while the server runs.
            made_of = [(schema_name(r), r.schema) for r in registry.in_version(group, version)]
            digest = hashlib.sha512(orjson.dumps(made_of)).hexdigest().upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def document(registry: Registry, definitions: Definitions, group: str, version: str) -> Document:
    """Return the OpenAPI v3 document of one group version."""
    resources = registry.in_version(group, version)
    schemas: dict[str, Any] = {}
    for resource in resources:
        gvk = {"group": resource.group, "kind": resource.kind, "version": resource.version}
        root = root_of(resource.definition, resource.schema, definitions).resolved
        schemas[schema_name(resource)] = {**root, "x-kubernetes-group-version-kind": [gvk]}
    # Add what the definitions refer to, transitively.
    waiting = list(schemas.values())
    while waiting:
        for name in _references(waiting.pop()):
            if name not in schemas:
                schemas[name] = definitions[name]
                waiting.append(definitions[name])
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.37.0"},
        "paths": {path: item for r in resources for path, item in _paths(r).items()},
        "components": {"schemas": _rewritten(schemas, _COMPONENTS)},
    }


def schema_name(resource: Resource) -> str:
    """Return the name of a kind's definition in the OpenAPI documents."""
    backwards = ".".join(reversed(resource.group.split(".")))
    return resource.definition or f"{backwards}.{resource.version}.{resource.kind}"


def _references(schema: Any) -> Iterable[str]:
    if isinstance(schema, Mapping):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(_DEFS)
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _rewritten(schema: Any, prefix: str) -> Any:
    """Return the schema in the dialect of OpenAPI 3.0.

    A list of types ``[type, null]`` becomes the type; references start with ``prefix``.
    """
    if isinstance(schema, list):
        return [_rewritten(value, prefix) for value in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _rewritten(value, prefix) for key, value in schema.items()}
    if isinstance(found.get("type"), list):
        found["type"] = next(kind for kind in found["type"] if kind != "null")
    if isinstance(found.get("$ref"), str):
        reference = {"$ref": found.pop("$ref").replace(_DEFS, prefix)}
        return {**found, "allOf": [reference]} if found else reference
    return found


def _paths(resource: Resource) -> Document:
    gvk = {"group": resource.group, "kind": resource.kind, "version": resource.version}
    names = resource.group.title().replace(".", ""), resource.version.title()
    content = {"application/json": {"schema": {"$ref": _COMPONENTS + schema_name(resource)}}}
    paths: Document = {}
    for verb, (method, name) in _METHODS.items():
        if verb not in resource.verbs:
            continue
        # kubectl looks for these options before it sends a write.
        options = ("dryRun", "fieldManager", "fieldValidation") if verb in _WRITES else ()
        paths.setdefault(resource.path("{namespace}", name), {})[method] = {
            "operationId": "".join((verb, *names, resource.kind)),
            "parameters": [{"in": "query", "name": name, "schema": {"type": "string"}} for name in options],
            "responses": {"200": {"description": "OK", "content": content}},
            "x-kubernetes-action": verb,
            "x-kubernetes-group-version-kind": gvk,
        }
    return paths


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
NO_DEFINITIONS = b"\n\x032.0\x12\x15\n\nKubernetes\x12\x07v1.37.0"
"""gnostic's ``openapi.v2.Document`` without definitions: kubectl then leaves the validation of a List to the server."""
HEALTH = ("healthz", "livez", "readyz")


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


def page(registry: Registry, definitions: Definitions, path: str, accept: str) -> tuple[Any, str] | None:
    """Return the document at a path and its media type, or None if the path has none; text is sent unchanged."""
    parts = path.strip("/").split("/")
    body: Document
    match parts:
        case [name, *_] if name in HEALTH:
            return "ok", "text/plain"
        case ["openapi", "v2"] if accept.startswith(OPENAPI_PROTOBUF):
            return NO_DEFINITIONS, OPENAPI_PROTOBUF.replace("@", ".")
        case ["version"]:
            body = VERSION
        case ["openapi", "v3"]:
            body = index(registry)
        case ["openapi", "v3", "api", version] if version in registry.groups[""]:
            body = document(registry, definitions, "", version)
        case ["openapi", "v3", "apis", name, version] if version in registry.groups.get(name, []):
            body = document(registry, definitions, name, version)
        case ["api"]:
            body = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            listed = [group(registry, name) for name in registry.groups if name]
            body = {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case ["apis", name] if name in registry.groups:
            body = group(registry, name)
        case ["api", version] if version in registry.groups[""]:
            body = resources(registry, "", version)
        case ["apis", name, version] if version in registry.groups.get(name, []):
            body = resources(registry, name, version)
        case _:
            return None
    return body, JSON
