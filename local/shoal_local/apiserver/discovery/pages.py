"""The documents by their paths."""

from dataclasses import dataclass
from typing import Any

from shoal_local.apiserver.discovery import documents, openapi
from shoal_local.apiserver.kinds.registry import Registry

JSON = "application/json"
# Asked for with an @, which is no media type: the answer names it with a dot.
OPENAPI_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
HEALTH = ("healthz", "livez", "readyz")


@dataclass(frozen=True, slots=True)
class Page:
    """A document and its media type; text and bytes are sent as they are."""

    body: Any
    media_type: str = JSON


def page(registry: Registry, definitions: openapi.Definitions, path: str, accept: str) -> Page | None:
    """Return the document at a path, or None when no document is there."""
    parts = path.strip("/").split("/")
    aggregated = "as=APIGroupDiscoveryList" in accept
    match parts:
        case [name, *_] if name in HEALTH:
            return Page("ok", "text/plain")
        case ["version"]:
            return Page(documents.VERSION)
        case ["api" | "apis" as root] if aggregated:
            found = documents.aggregated(registry, core=root == "api")
            return Page(found, documents.AGGREGATED)
        case ["openapi", "v2"] if accept.startswith(OPENAPI_PROTOBUF):
            return Page(openapi.version_2_in_protobuf(), OPENAPI_PROTOBUF.replace("@", "."))
        case ["openapi", *rest]:
            return _openapi(registry, definitions, rest)
        case _:
            return _of_group(registry, parts)


def _of_group(registry: Registry, parts: list[str]) -> Page | None:
    match parts:
        case ["api"]:
            return Page(documents.core_versions())
        case ["apis"]:
            return Page(documents.groups(registry))
        case ["apis", group] if group in registry.groups:
            return Page(documents.group(registry, group))
        case ["api", version] if version in registry.groups[""]:
            return Page(documents.resources(registry, "", version))
        case ["apis", group, version] if version in registry.groups.get(group, []):
            return Page(documents.resources(registry, group, version))
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
