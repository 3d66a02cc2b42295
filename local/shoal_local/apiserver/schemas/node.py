"""One view of both kinds of schema.

OpenAPI definitions with references, and structural schemas of custom kinds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_REF = "#/$defs/"


@dataclass(frozen=True, slots=True)
class Node:
    """A place in a schema.

    Walk down with ``child`` (a field or a map's value) and ``item`` (a list's element).
    """

    schema: Mapping[str, Any]
    definitions: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @property
    def reference(self) -> str:
        """Return the name of the definition that this place refers to, or ''."""
        return str(self.schema.get("$ref", "")).removeprefix(_REF)

    @property
    def resolved(self) -> Mapping[str, Any]:
        """Return the schema itself, following a reference."""
        return self.definitions[self.reference] if self.reference else self.schema

    def tag(self, name: str) -> Any:
        """Return ``x-kubernetes-<name>`` of this place.

        One beside a reference wins over one behind it.
        """
        key = f"x-kubernetes-{name}"
        return self.schema.get(key, self.resolved.get(key))

    @property
    def type(self) -> str:
        """Return the JSON type, or '' when any will do."""
        found = self.resolved.get("type", "")
        return found if isinstance(found, str) else next(t for t in found if t != "null")

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the named properties."""
        found: Mapping[str, Any] = self.resolved.get("properties") or {}
        return found

    @property
    def open(self) -> bool:
        """Say whether fields that the schema does not name are kept."""
        schema = self.resolved
        return bool(
            self.tag("preserve-unknown-fields")
            or self.tag("embedded-resource")
            or schema.get("additionalProperties") is True
            or not (
                schema.get("properties") or isinstance(schema.get("additionalProperties"), Mapping)
            )
        )

    def child(self, name: str) -> "Node | None":
        """Return the schema of a field or of a map's value.

        None when the schema does not know it.
        """
        if name in self.fields:
            return Node(self.fields[name], self.definitions)
        values = self.resolved.get("additionalProperties")
        return Node(values, self.definitions) if isinstance(values, Mapping) else None

    @property
    def item(self) -> "Node | None":
        """Return the schema of a list's elements."""
        items = self.resolved.get("items")
        return Node(items, self.definitions) if isinstance(items, Mapping) else None

    @property
    def associative(self) -> bool:
        """Say whether this is a list whose elements are known by their keys."""
        return bool(self.tag("list-type") == "map")

    @property
    def map_keys(self) -> tuple[str, ...]:
        """Return the fields that name an element of an associative list."""
        return tuple(self.tag("list-map-keys") or ())


def root_of(
    definition: str,
    schema: Mapping[str, Any] | None,
    definitions: Mapping[str, Mapping[str, Any]],
) -> Node:
    """Return the schema of a whole object, of a built-in kind or of a custom one."""
    if definition:
        return Node(definitions[definition], definitions)
    schema = schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    named = {
        **(schema.get("properties") or {}),
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"$ref": _REF + OBJECT_META},
    }
    return Node({**schema, "properties": named}, definitions)
