"""The schema of a custom kind, applied to an object: prune, set defaults, validate."""

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
"""Causes after which the rules of an object are not evaluated."""
NOT_CHECKED = Cause(
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)
_MISSING = object()


def prune(value: Any, node: Node | None) -> Any:
    """Return the value without fields that the schema does not declare.

    A field under ``x-kubernetes-preserve-unknown-fields`` stays; declared fields below it are still pruned.
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
    """Return the value with defaults where a field is missing or wrongly null."""
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
            # A copy: the object may be modified later.
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
        """Compile the schema of a complete object."""
        # Metadata is validated elsewhere, but the author's rules for names apply.
        plain = {key: value for key, value in root.schema.items() if key != "properties"}
        meta = {key: value for key, value in root.fields["metadata"].items() if key != "$ref"}
        fields = {**root.fields, "metadata": meta}
        return cls(root, compile_schema({**plain, "properties": fields}), compile_rules(root.schema))

    def admitted(self, obj: Object) -> Object:
        """Return the object pruned and with defaults; metadata stays unchanged."""
        meta = obj["metadata"]
        return {**with_defaults(prune(obj, self.root), self.root), "metadata": meta}

    def causes(self, obj: Object, live: Object | None) -> list[Cause]:
        """Return the violations of an object.

        Violations that exist in ``live`` with the same value are skipped: a stricter schema must not block writes to
        old objects.
        """
        found = value_causes(self.validator, obj) or list(duplicate_causes(obj, self.root, []))
        causes = []
        for cause in found:
            steps = [int(s) if s.isdigit() else s for s in re.findall(r"[^.\[\]]+", cause.field)]
            # A missing field concerns the object that does not have it.
            steps = steps[:-1] if cause.reason == "FieldValueRequired" else steps
            old = _MISSING if live is None else _at(live, steps)
            if old is _MISSING or old != _at(obj, steps):
                causes.append(cause)
        if self.rules and any(cause.reason in BLOCKING for cause in causes):
            return [*causes, NOT_CHECKED]
        return [*causes, *rule_causes(self.rules, self.root, _for_rules(obj), _for_rules(live), [])]


def _for_rules(obj: Object | None) -> Object | None:
    """Return the object that CEL rules receive.

    Its metadata has only ``name`` and ``generateName``.
    """
    if obj is None:
        return None
    meta = {key: value for key, value in obj["metadata"].items() if key in ("name", "generateName")}
    return {**obj, "metadata": meta}


def _at(value: Any, steps: list[Any]) -> Any:
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value
