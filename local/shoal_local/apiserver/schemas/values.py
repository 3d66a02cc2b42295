"""Structural schemas: validation of values, with the messages of the Kubernetes API server."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jsonschema import Draft4Validator, FormatChecker
from jsonschema.exceptions import ValidationError

from shoal_local.apiserver.errors import Cause, invalid_value, json_text, required_value, unsupported_value
from shoal_local.apiserver.schemas.node import Node, path_text, places

_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_DURATION = re.compile(r"[+-]?(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))+|0")


_CHECKS: Mapping[str, Callable[[object], bool]] = {
    # The pattern alone admits a month 13.
    "date-time": lambda value: (
        not isinstance(value, str)
        or (_DATE_TIME.fullmatch(value) is not None and bool(datetime.fromisoformat(value.upper())))
    ),
    "duration": lambda value: not isinstance(value, str) or _DURATION.fullmatch(value) is not None,
    "int32": lambda value: not isinstance(value, int) or -(2**31) <= value < 2**31,
    "int64": lambda value: not isinstance(value, int) or -(2**63) <= value < 2**63,
}
FORMATS = FormatChecker(formats=())
for _name, _check in _CHECKS.items():
    FORMATS.checks(_name, raises=ValueError)(_check)


def compile_schema(schema: Mapping[str, Any]) -> Draft4Validator:
    """Return a validator of a structural schema."""
    return Draft4Validator(_plain(schema), format_checker=FORMATS)


def _plain(schema: Any) -> Any:
    """Return the schema in JSON Schema draft 4: nullable and int-or-string become lists of types."""
    if isinstance(schema, list):
        return [_plain(value) for value in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            # Names of fields, which may equal keywords.
            found[key] = {name: _plain(inner) for name, inner in value.items()}
        elif key in ("enum", "required", "pattern", "description"):
            found[key] = value
        elif key != "default":
            found[key] = _plain(value)
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in found:
        types = found["type"]
        found["type"] = [*(types if isinstance(types, list) else [types]), "null"]
    return found


def value_causes(validator: Draft4Validator, value: Any) -> list[Cause]:
    """Return the violations of a value, in the order of its fields."""
    return [cause for error in validator.iter_errors(value) for cause in _causes(error)]


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
"""Names of types in messages."""


def _bound(word: str, strict: str) -> Callable[[ValidationError], str]:
    def message(error: ValidationError) -> str:
        exclusive = error.schema.get(strict)
        return f"should be {word} than {'' if exclusive else 'or equal to '}{error.validator_value}"

    return message


_MESSAGES: Mapping[str, Callable[[ValidationError], str]] = {
    "minimum": _bound("greater", "exclusiveMinimum"),
    "maximum": _bound("less", "exclusiveMaximum"),
    "multipleOf": lambda e: f"should be a multiple of {e.validator_value}",
    "minLength": lambda e: f"should be at least {e.validator_value} chars long",
    "pattern": lambda e: f"should match '{e.validator_value}'",
    "minItems": lambda e: f"should have at least {e.validator_value} items",
    "uniqueItems": lambda e: "shouldn't contain duplicates",
    "minProperties": lambda e: f"should have at least {e.validator_value} properties",
    "format": lambda e: f"must be of type {e.validator_value}: {json_text(e.instance)}",
    "anyOf": lambda e: "must validate at least one schema (anyOf)",
    "oneOf": lambda e: (
        f"must validate one and only one schema (oneOf). Found {'none valid' if e.context else '2 valid alternatives'}"
    ),
    "not": lambda e: "must not validate the schema (not)",
}


def _causes(error: ValidationError) -> Iterator[Cause]:
    path = path_text(list(error.absolute_path))
    rule, limit, value = str(error.validator), error.validator_value, error.instance
    if rule == "required":
        # The library reports one error for each missing name, and the name only in its message.
        name = next(n for n in limit if error.message.startswith(f"{n!r} is"))
        yield required_value(f"{path}.{name}" if path else name)
    elif rule == "enum":
        yield unsupported_value(path, value, limit)
    elif rule == "type":
        kind, wanted = _TYPES.get(type(value), "null"), limit if isinstance(limit, str) else ",".join(limit)
        message = f'Invalid value: "{kind}": {path} in body must be of type {wanted}: "{kind}"'
        yield Cause(path, message, "FieldValueTypeInvalid")
    elif rule == "maxLength":
        yield Cause(path, f"Too long: may not be more than {limit} bytes", "FieldValueTooLong")
    elif rule in ("maxItems", "maxProperties"):
        yield Cause(path, f"Too many: {len(value)}: must have at most {limit} items", "FieldValueTooMany")
    else:
        message = _MESSAGES[rule](error) if rule in _MESSAGES else error.message
        yield invalid_value(path, value, f"{path} in body {message}")


def duplicate_causes(value: Any, node: Node) -> Iterator[Cause]:
    """Yield the repeated elements of sets and keyed lists."""
    for inner, at, steps in places(value, node):
        if not isinstance(inner, list) or at.tag("list-type") not in ("set", "map"):
            continue
        seen = set()
        for index, item in enumerate(inner):
            keyed = at.associative and isinstance(item, dict)
            key = json_text({k: item.get(k) for k in at.map_keys} if keyed else item)
            if key in seen:
                yield Cause(path_text([*steps, index]), f"Duplicate value: {key}", "FieldValueDuplicate")
            seen.add(key)
