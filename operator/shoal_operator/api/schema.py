"""Spec classes -> structural OpenAPI schema, as a CustomResourceDefinition wants it."""

import dataclasses
from enum import StrEnum
from typing import Any

from shoal_operator.api.fields import FieldView, Json, Rule, fields_of, rules_of

_INT32_MAX = 2**31 - 1


def object_schema(cls: type) -> Json:
    """Return the schema of a spec class: properties, required names and CEL rules."""
    views = fields_of(cls)
    schema: Json = {
        "type": "object",
        "properties": {view.name: field_schema(view) for view in views},
    }
    if required := [view.name for view in views if view.required]:
        schema["required"] = required
    if rules := rules_of(cls):
        schema["x-kubernetes-validations"] = [_rule(rule) for rule in rules]
    return schema


def field_schema(view: FieldView) -> Json:
    """Return the schema of one field with its description and default."""
    schema: Json = {"description": view.schema.description, **_typed(view)}
    default = plain(view.default)
    if not (view.required or default is None):
        schema["default"] = default
    return schema


def plain(value: Any) -> Any:
    """Return a default as JSON, or None when there is none.

    A nested spec is written out whole: an API server checks a default against the CEL rules as it
    stands, before it fills in the defaults inside it.
    """
    if dataclasses.is_dataclass(value):
        pairs = ((view.name, plain(view.default)) for view in fields_of(type(value)))
        return {name: inner for name, inner in pairs if inner is not None}
    if value == () or value is dataclasses.MISSING:
        return None
    return str(value) if isinstance(value, StrEnum) else value


def _typed(view: FieldView) -> Json:
    if view.schema.raw is not None:
        return view.schema.raw
    if view.element is None:
        return _scalar(view.type, view)
    schema: Json = {"type": "array", "items": _scalar(view.element, view)}
    if view.schema.max_items is not None:
        schema["maxItems"] = view.schema.max_items
    if view.schema.is_set:
        schema["x-kubernetes-list-type"] = "set"
    return schema


def _scalar(kind: Any, view: FieldView) -> Json:
    if dataclasses.is_dataclass(kind):
        return object_schema(kind)  # type: ignore[arg-type]  # a class, not an instance
    if issubclass(kind, StrEnum):
        return {"type": "string", "enum": [str(member) for member in kind]}
    if kind is bool:
        return {"type": "boolean"}
    if kind is int:
        return _integer(view)
    limits = {"pattern": view.schema.pattern, "maxLength": view.schema.max_length}
    return {"type": "string", **_given(limits)}


def _integer(view: FieldView) -> Json:
    limits = {"minimum": view.schema.minimum, "maximum": view.schema.maximum}
    wide = (view.schema.maximum or 0) > _INT32_MAX
    return {"type": "integer", "format": "int64" if wide else "int32", **_given(limits)}


def _given(limits: Json) -> Json:
    return {key: value for key, value in limits.items() if value is not None}


def _rule(rule: Rule) -> Json:
    schema = {"rule": rule.expression, "message": rule.message}
    return {**schema, "fieldPath": rule.path} if rule.path else schema
