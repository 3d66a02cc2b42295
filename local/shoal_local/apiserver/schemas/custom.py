"""All that a custom kind's schema does to an object: prune, default, check."""

import copy
import re
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft4Validator

from shoal_local.apiserver.errors import Cause
from shoal_local.apiserver.schemas.cel_rules import Rules, compile_rules, rule_causes
from shoal_local.apiserver.schemas.node import Node
from shoal_local.apiserver.schemas.values import compile_schema, duplicate_causes, value_causes
from shoal_local.objects import Object

_KEPT = ("apiVersion", "kind", "metadata")

BLOCKING = {f"FieldValue{why}" for why in ("NotSupported", "Required", "TooLong", "TooMany", "TypeInvalid")}
"""An object with one of these is not fit for its rules."""
NOT_CHECKED = Cause(
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)
_MISSING = object()


def prune(value: Any, node: Node | None) -> Any:
    """Return the value without the fields that the schema does not know.

    A field under ``x-kubernetes-preserve-unknown-fields`` stays; what the schema knows below it is pruned still.
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


@dataclass(frozen=True, slots=True)
class CustomSchema:
    """A compiled structural schema."""

    root: Node
    validator: Draft4Validator
    rules: Rules

    @classmethod
    def of(cls, root: Node) -> "CustomSchema":
        """Compile the schema of a whole object."""
        plain = {key: value for key, value in root.schema.items() if key != "properties"}
        meta = {key: value for key, value in root.fields["metadata"].items() if key != "$ref"}
        fields = {**root.fields, "metadata": meta}
        return cls(root, compile_schema({**plain, "properties": fields}), compile_rules(root.schema))

    def admitted(self, obj: Object) -> Object:
        """Return the object pruned and with defaults; metadata is left as it is."""
        meta = obj["metadata"]
        return {**with_defaults(prune(obj, self.root), self.root), "metadata": meta}

    def causes(self, obj: Object, live: Object | None) -> list[Cause]:
        """Return what is wrong with an object.

        What was wrong before and has not been touched is let through, so that a stricter schema
        does not stop writes to objects that are older than it.
        """
        told = value_causes(self.validator, obj) or list(duplicate_causes(obj, self.root, []))
        told = [cause for cause in told if live is None or not _untouched(cause, obj, live)]
        if self.rules and any(cause.reason in BLOCKING for cause in told):
            return [*told, NOT_CHECKED]
        return [*told, *rule_causes(self.rules, self.root, _seen(obj), _seen(live), [])]


def _seen(obj: Object | None) -> Object | None:
    """Return the object as rules at its root see it: of metadata only the names."""
    if obj is None:
        return None
    meta = {key: value for key, value in obj["metadata"].items() if key in ("name", "generateName")}
    return {**obj, "metadata": meta}


def _untouched(cause: Cause, obj: Object, live: Object) -> bool:
    steps = [int(s) if s.isdigit() else s for s in re.findall(r"[^.\[\]]+", cause.field)]
    if cause.reason == "FieldValueRequired":
        steps = steps[:-1]
    old = _at(live, steps)
    return old is not _MISSING and old == _at(obj, steps)


def _at(value: Any, steps: list[Any]) -> Any:
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value
