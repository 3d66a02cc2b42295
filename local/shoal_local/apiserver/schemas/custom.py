"""All that a custom kind's schema does to an object: prune, default, check."""

import re
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft4Validator

from shoal_local.apiserver.errors import Cause
from shoal_local.apiserver.schemas.cel_rules import Rules, compile_rules, rule_causes
from shoal_local.apiserver.schemas.node import Node
from shoal_local.apiserver.schemas.structural import prune, with_defaults
from shoal_local.apiserver.schemas.values import compile_schema, duplicate_causes, value_causes

Object = dict[str, Any]
BLOCKING = {
    "FieldValueNotSupported",
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
}
"""An object with one of these is not fit for its rules."""
NOT_CHECKED = Cause(
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)
_MISSING = object()


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
