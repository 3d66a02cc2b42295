"""A stored spec -> the typed model, with an error that names the field.

The API server has checked the spec against its schema and filled in the defaults. This parser does
not trust that: the stored object may be older than the schema, and a schema cannot say everything.
"""

import dataclasses
import re
from enum import StrEnum
from typing import Any, TypeVar

from shoal_operator.api.fields import FieldSchema, FieldView, Json, fields_of
from shoal_operator.api.model import InferenceServiceSpec
from shoal_operator.api.raw import ShapeError, check_shape

T = TypeVar("T")


class SpecError(ValueError):
    """A spec that cannot work; the message names the field, what is allowed, and what it is."""


def parse_spec(resource: Json) -> InferenceServiceSpec:
    """Return the typed spec of an ``InferenceService``.

    Raises:
        SpecError: a field is missing, of the wrong type, or out of range.
    """
    return decode(InferenceServiceSpec, resource.get("spec", {}), "spec")


def decode(cls: type[T], value: Any, path: str) -> T:
    """Return an instance of a spec class from JSON; unknown keys are refused."""
    if not isinstance(value, dict):
        raise SpecError(f"{path} must be an object, not {value!r}")
    views = {view.name: view for view in fields_of(cls)}
    for key in value:
        if key not in views:
            raise SpecError(f"{path}.{key} is not a field; known are {', '.join(sorted(views))}")
    return cls(**dict(_attributes(views, value, path)))


def _attributes(views: dict[str, FieldView], value: Json, path: str) -> list[tuple[str, Any]]:
    pairs = []
    for name, view in views.items():
        if value.get(name) is not None:
            pairs.append((view.attribute, _field(view, value[name], f"{path}.{name}")))
        elif view.required:
            raise SpecError(f"{path}.{name} is required")
    return pairs


def _field(view: FieldView, value: Any, path: str) -> Any:
    if view.schema.raw is not None:
        return _raw(view, value, path)
    if view.element is None:
        return _scalar(view.type, value, view, path)
    if not isinstance(value, list):
        raise SpecError(f"{path} must be a list, not {value!r}")
    if view.schema.max_items is not None and len(value) > view.schema.max_items:
        raise SpecError(f"{path} must have at most {view.schema.max_items} items, not {len(value)}")
    return tuple(_scalar(view.element, item, view, f"{path}[{index}]") for index, item in enumerate(value))


def _raw(view: FieldView, value: Any, path: str) -> Any:
    try:
        check_shape(view.schema.raw or {}, value, path)
    except ShapeError as error:
        raise SpecError(str(error)) from None
    return value if view.element is None else tuple(value)


def _scalar(kind: Any, value: Any, view: FieldView, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return decode(kind, value, path)  # type: ignore[arg-type]  # a class, not an instance
    if issubclass(kind, StrEnum):
        return _member(kind, value, path)
    if type(value) is not kind:
        raise SpecError(f"{path} must be of type {kind.__name__}, not {value!r}")
    _check_range(value, view.schema, path)
    return value


def _member(kind: type[StrEnum], value: Any, path: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(kind)
        raise SpecError(f"{path} must be one of {allowed}, not {value!r}") from None


def _check_range(value: Any, schema: FieldSchema, path: str) -> None:
    if schema.minimum is not None and value < schema.minimum:
        raise SpecError(f"{path} must be at least {schema.minimum}, not {value}")
    if schema.maximum is not None and value > schema.maximum:
        raise SpecError(f"{path} must be at most {schema.maximum}, not {value}")
    if schema.max_length is not None and len(value) > schema.max_length:
        raise SpecError(f"{path} must have at most {schema.max_length} characters")
    if schema.pattern is not None and not re.search(schema.pattern, value):
        raise SpecError(f"{path} must match {schema.pattern}, not {value!r}")
