"""OpenAPI v3 and v2 documents for `kubectl apply` and `kubectl explain`.

The document of a group version lists its paths and all definitions that its kinds refer to. Each operation names its
kind and the options that kubectl checks for (``fieldValidation``, ``dryRun``).
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from shoal_local.apiserver.kinds.registry import Registry
from shoal_local.apiserver.kinds.resource import Resource
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


def version_2_in_protobuf() -> bytes:
    """Return the document at ``/openapi/v2``, without definitions (protobuf).

    The message is gnostic's ``openapi.v2.Document``. kubectl reads it to validate the objects of a ``kind: List``.
    Without definitions, kubectl leaves the validation to the server.
    """
    return b"\n\x032.0\x12\x15\n\nKubernetes\x12\x07v1.37.0"
