"""Structural OpenAPI schemas of sections, for a CustomResourceDefinition.

msgspec generates JSON Schema 2020. Kubernetes accepts OpenAPI 3.0 without references and unions with null and, by
convention, without fractions in a spec.
"""

import math
import typing
from typing import Any

import msgspec
from msgspec import Struct

from shoal_schema.fields.declaring import Json, SettingsSection, fields_of, is_choice, section_of
from shoal_schema.fields.quantities import PATTERN, Quantity

_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_QUANTITY: Json = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": PATTERN,
}
_LEFT_OUT = ("title", "additionalProperties", "required", "default")
"""Keywords that are generated here, or that structural schemas do not have."""


def object_schema(cls: type[Struct]) -> Json:
    """Return the schema of a section: properties, required names, defaults and CEL rules."""
    (root,), components = msgspec.json.schema_components((cls,), schema_hook=_custom, ref_template="{name}")
    return _structural(components[root["$ref"]], components, _classes(cls))


def plain(value: Any) -> Any:
    """Return a field's default as JSON, or None if it has no default.

    A nested section is written out whole: API servers check a default against the CEL rules before they fill in the
    defaults inside it.
    """
    if isinstance(value, Struct):
        pairs = ((each.name, plain(getattr(value, each.path[0]))) for each in fields_of(type(value)))
        return {name: inner for name, inner in pairs if inner is not None}
    if value in ((), {}) or value is msgspec.NODEFAULT:
        return None
    if isinstance(value, float):
        return int(value)
    return msgspec.to_builtins(value)


def _custom(kind: type) -> Json:
    if kind is Quantity:
        return _QUANTITY
    raise NotImplementedError(kind)


def _classes(cls: type[Struct]) -> dict[str, type[Struct]]:
    """Return a section and all sections inside it, by class name."""
    found: dict[str, type[Struct]] = {cls.__name__: cls}
    for each in fields_of(cls):
        if section := section_of(each.kind) or section_of(next(iter(typing.get_args(each.kind)), None)):
            found |= _classes(section)
    return found


def _structural(schema: Json, components: Json, classes: dict[str, type[Struct]]) -> Json:
    """Convert a JSON schema to a structural one, without references and unions with null."""
    if schema.get("x-kubernetes-int-or-string"):
        return schema
    # An optional field: a union with null.
    if "anyOf" in schema:
        (schema,) = (part for part in schema["anyOf"] if part.get("type") != "null")
    if name := schema.get("$ref"):
        # A reference may have a description of its own beside it.
        own = {word: value for word, value in schema.items() if word != "$ref"}
        return _structural({**components[name], **own, "title": name}, components, classes)
    converted = {word: value for word, value in schema.items() if word not in _LEFT_OUT}
    if converted.get("type") in ("integer", "number"):
        above = converted.pop("exclusiveMinimum", None)
        if above is not None:
            converted["minimum"] = math.floor(above) + 1
        # OpenAPI formats: int32 unless the maximum needs int64.
        wide = converted.get("maximum", 0) > _INT32_MAX
        if converted.get("maximum", 0) >= _INT64_MAX:
            # int64 implies these bounds, and Helm does not keep such large numbers exactly.
            del converted["minimum"], converted["maximum"]
        converted |= {"type": "integer", "format": "int64" if wide else "int32"}
    if "pattern" in converted:
        # RE2 has no \Z: its $ matches only at the end of the text.
        converted["pattern"] = converted["pattern"].replace(r"\Z", "$")
    if "enum" in schema:
        return {"type": "string", **converted}
    # Elements of lists and values of objects.
    for word in ("items", "additionalProperties"):
        if schema.get(word):
            converted[word] = _structural(schema[word], components, classes)
    if "properties" in schema:
        converted |= _object(schema, components, classes)
    return converted


def _object(schema: Json, components: Json, classes: dict[str, type[Struct]]) -> Json:
    parts = {name: _structural(part, components, classes) for name, part in schema["properties"].items()}
    cls = classes.get(schema.get("title", ""))
    found: Json = {"properties": parts}
    if cls is not None:
        for each in fields_of(cls):
            parts[each.name].pop("description", None)
            parts[each.name] = {"description": each.description, **parts[each.name]}
            if is_choice(each.kind):
                parts[each.name]["enum"] = [str(member) for member in each.kind]  # in the order of the source
            if (default := plain(each.default)) is not None:
                parts[each.name]["default"] = default
    if schema.get("required"):
        found["required"] = schema["required"]
    if cls is not None and issubclass(cls, SettingsSection) and cls.RULES:
        found["x-kubernetes-validations"] = [rule.schema(cls) for rule in cls.RULES]
    return found
