"""Schema nodes: one interface to OpenAPI definitions and custom schemas."""

from collections.abc import Iterator, Mapping
from typing import Any

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_REF = "#/$defs/"


class Node:
    """A place in a schema.

    Descend with ``child`` (a field or a map's value) and ``item`` (a list's element). A node
    caches its children: the same few places are visited for every object of a kind.
    """

    __slots__ = ("_children", "_item", "definitions", "fields", "reference", "resolved", "schema")

    def __init__(self, schema: Mapping[str, Any], definitions: Mapping[str, Mapping[str, Any]]) -> None:
        self.schema = schema
        self.definitions = definitions
        reference = schema.get("$ref")
        self.reference: str = reference.removeprefix(_REF) if isinstance(reference, str) else ""
        """Name of the definition that this place refers to, or ''."""
        self.resolved = definitions[self.reference] if self.reference else schema
        """The schema, with the reference resolved."""
        self.fields: Mapping[str, Any] = self.resolved.get("properties") or {}
        """The named properties."""
        self._children: dict[str, Node | None] = {}
        self._item: Node | None = None

    def tag(self, name: str) -> Any:
        """Return the schema's ``x-kubernetes-<name>``, or that of its ``$ref``."""
        key = f"x-kubernetes-{name}"
        return self.schema.get(key, self.resolved.get(key))

    @property
    def type(self) -> str:
        """Return the JSON type, or '' for any type."""
        found = self.resolved.get("type", "")
        return found if isinstance(found, str) else next(t for t in found if t != "null")

    @property
    def open(self) -> bool:
        """Return whether fields that the schema does not declare are kept."""
        schema = self.resolved
        return bool(
            self.tag("preserve-unknown-fields")
            or self.tag("embedded-resource")
            or schema.get("additionalProperties") is True
            or not (schema.get("properties") or isinstance(schema.get("additionalProperties"), Mapping))
        )

    def child(self, name: str) -> "Node | None":
        """Return the schema of a field or of a map's value, or None if the schema does not declare it."""
        if name in self._children:
            return self._children[name]
        values = self.resolved.get("additionalProperties")
        schema = self.fields.get(name, values)
        found = Node(schema, self.definitions) if isinstance(schema, Mapping) else None
        # Keys of a map are unbounded and must not be cached.
        if name in self.fields:
            self._children[name] = found
        return found

    @property
    def item(self) -> "Node | None":
        """Return the schema of a list's elements."""
        items = self.resolved.get("items")
        if self._item is None and isinstance(items, Mapping):
            self._item = Node(items, self.definitions)
        return self._item

    @property
    def associative(self) -> bool:
        """Return whether this is a list whose elements are identified by keys."""
        return bool(self.tag("list-type") == "map")

    @property
    def map_keys(self) -> tuple[str, ...]:
        """Return the key fields of an associative list."""
        return tuple(self.tag("list-map-keys") or ())


def root_of(definition: str, schema: Mapping[str, Any] | None, definitions: Mapping[str, Mapping[str, Any]]) -> Node:
    """Return the schema of a complete object of a built-in or custom kind."""
    if definition:
        return Node(definitions[definition], definitions)
    schema = schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    named = {
        **(schema.get("properties") or {}),
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        # The author's rules for names are checked as values; the server validates the rest of metadata.
        "metadata": {**(schema.get("properties") or {}).get("metadata", {}), "$ref": _REF + OBJECT_META},
    }
    return Node({**schema, "properties": named}, definitions)


def places(value: Any, node: Node | None, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, Node, list[Any]]]:
    """Yield each value in an object with its schema and path, outer before inner.

    Values that the schema does not declare are left out.
    """
    if node is None or value is None:
        return
    yield value, node, list(steps)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, node.child(key), (*steps, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, node.item, (*steps, index))


def path_text(steps: list[Any]) -> str:
    """Return the text of a path, such as ``spec.parts[0].name``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
