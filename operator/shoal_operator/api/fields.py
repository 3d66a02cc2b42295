"""What a field of the spec says about itself: description, range, default, environment variable."""

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any

Json = dict[str, Any]


HEADER_NAME = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
"""The pattern of a header's name (RFC 9110, a token)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule that an object must satisfy, with the sentence a user reads when it does not.

    Args:
        expression: CEL over ``self``, the object that carries the rule.
        message: what to do, in the words of the spec.
        path: the field at fault, relative to ``self`` (``.maxReplicas``).
    """

    expression: str
    message: str
    path: str


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """The published side of one field.

    Args:
        minimum, maximum: inclusive range of a number, in the unit of the field's name.
        env: the environment variable that carries the value into the pod.
        containers: the containers that get the variable.
        lower: write the variable in lower case (an enumeration of the spec is in CamelCase).
        raw: the OpenAPI schema itself, for what is passed through to Kubernetes unchanged.
        list_key: the property that names an element; the list is then a map for server-side apply.
        is_set: elements are unique and their order says nothing.
    """

    description: str
    minimum: int | None = None
    maximum: int | None = None
    pattern: str | None = None
    max_length: int | None = None
    max_items: int | None = None
    env: str | None = None
    containers: tuple[str, ...] = ()
    lower: bool = False
    raw: Json | None = None
    list_key: str | None = None
    is_set: bool = False


def spec_field(
    description: str,
    *,
    default: Any = MISSING,
    default_factory: Callable[[], Any] | Any = MISSING,
    **schema: Any,
) -> Any:
    """Declare one field of the spec; without a default a manifest must give it."""
    metadata = {"schema": FieldSchema(description, **schema)}
    if default_factory is not MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def rules_of(cls: type) -> tuple[Rule, ...]:
    """Return the CEL rules that an object of this class carries."""
    return tuple(getattr(cls, "RULES", ()))


@dataclass(frozen=True, slots=True)
class FieldView:
    """One field as the generators see it: its JSON name, its type without ``None``, its schema."""

    attribute: str
    name: str
    type: Any
    optional: bool
    default: Any
    schema: FieldSchema

    @property
    def required(self) -> bool:
        """Whether a manifest must give the field."""
        return self.default is MISSING

    @property
    def element(self) -> Any:
        """The type of a tuple's elements, or None when the field is not a list."""
        if typing.get_origin(self.type) is tuple:
            return typing.get_args(self.type)[0]
        return None


def fields_of(cls: type) -> tuple[FieldView, ...]:
    """Return the described fields of a spec class, in the order of the source."""
    return _fields_of(cls)


@cache
def _fields_of(cls: Any) -> tuple[FieldView, ...]:
    return tuple(_views(cls, typing.get_type_hints(cls)))


def _views(cls: type, hints: dict[str, Any]) -> Iterator[FieldView]:
    for field in dataclasses.fields(cls):
        inner, optional = _without_none(hints[field.name])
        schema = field.metadata["schema"]
        yield FieldView(field.name, camel_case(field.name), inner, optional, _default(field), schema)


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    inner = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
    return inner[0], True


def camel_case(name: str) -> str:
    """Return the JSON name of a Python attribute: ``max_batch_size`` is ``maxBatchSize``."""
    return re.sub(r"_([a-z0-9])", lambda match: match.group(1).upper(), name)
