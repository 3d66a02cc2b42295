"""Structural schemas: what they do not know is cut off, what is missing gets its default."""

import copy
from typing import Any

from shoal_local.apiserver.schemas.node import Node

_KEPT = ("apiVersion", "kind", "metadata")


def prune(value: Any, node: Node | None) -> Any:
    """Return the value without the fields that the schema does not know.

    A field under ``x-kubernetes-preserve-unknown-fields`` stays; what the schema knows below it
    is pruned still.
    """
    if isinstance(value, list):
        item = node.item if node else None
        return [prune(element, item) for element in value] if item else value
    if not isinstance(value, dict) or node is None:
        return value
    kept = {}
    for key, inner in value.items():
        child = node.child(key)
        if child is not None:
            kept[key] = prune(inner, child)
        elif node.open or (node.tag("embedded-resource") and key in _KEPT):
            kept[key] = inner
    return kept


def with_defaults(value: Any, node: Node | None) -> Any:
    """Return the value with defaults for missing fields; null ones that may not be null count as missing."""
    if node is None:
        return value
    if isinstance(value, list):
        return [with_defaults(element, node.item) for element in value]
    if not isinstance(value, dict):
        return value
    found = dict(value)
    for key, schema in node.fields.items():
        absent = key not in found or (found[key] is None and not schema.get("nullable"))
        if absent and "default" in schema:
            found[key] = copy.deepcopy(schema["default"])
    return {
        key: with_defaults(inner, node.child(key))
        for key, inner in found.items()
        if inner is not None or key not in node.fields or node.fields[key].get("nullable")
    }
