"""Declarations of settings: type, range, default, description, and the processes that read them.

A setting is an annotated attribute of a `SettingsSection`. Sections of the custom resources are in ``resource``,
sections that exist only in the environment in ``processes``.
"""

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, TypeGuard

import msgspec
from msgspec import Meta, Struct, structs

from shoal_schema.fields.quantities import Quantity

Json = dict[str, Any]
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
NAME = r"^[A-Za-z0-9._-]+\Z"
"""The pattern of a model's name and version, which are parts of paths.

Patterns end in ``\\Z``, as Python's ``$`` accepts a newline after it. API servers get ``$``, which in RE2 does not.
"""
NAME_IN_WORDS = "letters, digits, '.', '_' and '-'"


def _written(value: Any) -> str | int:
    if isinstance(value, Quantity):
        return value.written
    raise NotImplementedError(type(value))


def as_json(value: Any) -> Any:
    """Return a section, or a tuple of sections, as JSON values without defaults.

    The values stay the same when a newer CRD defines a section, whose default the API server adds to stored objects.
    """
    written = msgspec.json.decode(msgspec.json.encode(value, enc_hook=_written))
    _drop_default_sections(value, written)
    return written


def _drop_default_sections(value: Any, written: Any) -> None:
    """Remove inner sections that equal their default: msgspec omits only those that are the default itself."""
    if isinstance(value, tuple | list):
        for item, each in zip(value, written, strict=True):
            _drop_default_sections(item, each)
    if not isinstance(value, Struct):
        return
    for name, encode_name, default in _encoded_fields(type(value)):
        inner = getattr(value, name)
        if encode_name not in written or not isinstance(inner, Struct | tuple | list):
            continue
        if isinstance(inner, Struct) and inner == default:
            del written[encode_name]
        else:
            _drop_default_sections(inner, written[encode_name])


@cache
def _encoded_fields(kind: type[Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return name, name in JSON and default of each field."""
    return tuple((each.name, each.encode_name, each.default) for each in structs.fields(kind))


class Process(StrEnum):
    """Processes that read settings."""

    PROXY = "proxy"
    RUNTIME = "runtime"
    MODEL = "model"
    """The init container that downloads the model: a program of the runtime."""
    OPERATOR = "operator"
    ACTIVATOR = "activator"
    """The activator, which holds requests for services at zero replicas: a program of the proxy."""
    BATCH = "batch"
    """Scores the rows of files: a program of the runtime."""


PROXY, RUNTIME, MODEL, OPERATOR, ACTIVATOR, BATCH = Process


class FieldFault(ValueError):
    """Error of a field whose value fits its type but is invalid.

    Args:
        name: the field's name in JSON.
        what: the error without the field's name.
    """

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f".{name} {what}")
        self.name = name
        self.what = what


class SettingsSection(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A group of settings; names are in camelCase in JSON."""

    # Of `rules.Rule`: conditions on several fields. The API server and `decoding.decode` evaluate them.
    RULES: ClassVar[tuple[Any, ...]] = ()


# An annotation that msgspec ignores; `Setting.env` finds it.
class Env:
    """The environment variable of a setting.

    Args:
        name: name of the variable.
        readers: the processes that read the variable.
        unset: value that a process uses if the variable is not set; by default the field's default.
        reads: the type that a process parses, if it accepts more values than the resource's field.
        allowed: the allowed values in words, if the type does not define them.
        lower: whether the operator writes the value in lower case.
    """

    def __init__(
        self,
        name: str,
        *readers: Process,
        unset: Any = msgspec.UNSET,
        reads: Any = None,
        allowed: str = "",
        lower: bool = False,
    ) -> None:
        self.name = name
        self.readers = readers
        self.unset = unset
        self.reads = reads
        self.allowed = allowed
        self.lower = lower


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as declared in a section: type, default, description and environment variable."""

    path: tuple[str, ...]
    """Attributes from the root, ``("batching", "max_batch_size")``."""
    name: str
    """The path in JSON, dotted: ``batching.maxBatchSize``."""
    hint: Any
    """The annotation without ``None``, for msgspec."""
    kind: Any
    """The type without annotations."""
    optional: bool
    default: Any
    """`msgspec.NODEFAULT` if required."""
    meta: Meta
    env: Env | None

    @property
    def required(self) -> bool:
        """Whether the setting has no default."""
        return self.default is msgspec.NODEFAULT

    @property
    def description(self) -> str:
        """Description of the setting; of a section, its class's docstring."""
        return self.meta.description or getattr(section_of(self.kind), "__doc__", "") or ""

    @property
    def unset(self) -> Any:
        """Return the value that a process uses if the variable is not set."""
        return self.default if self.env is None or self.env.unset is msgspec.UNSET else self.env.unset

    @property
    def allowed(self) -> str:
        """Allowed values of the variable, in words."""
        if self.env and self.env.allowed:
            return self.env.allowed
        if self.kind is bool:
            return "true or false"
        if is_choice(self.kind):
            return ", ".join(self.kind)
        if self.kind in (int, float):
            return _range(self.meta)
        # A list of numbers has the bounds of its elements.
        element = next(
            (note for note in getattr(element_of(self.kind), "__metadata__", ()) if note.le is not None), None
        )
        if element is not None:
            return f"numbers of {_range(element)}, comma-separated"
        return {str: "a text"}.get(self.kind, "comma-separated" if element_of(self.kind) else "a JSON object")


@cache
def fields_of(cls: type[Struct]) -> tuple[Setting, ...]:
    """Return a section's settings in source order, without those of inner sections."""
    hints = typing.get_type_hints(cls, include_extras=True)
    settings = []
    for field in structs.fields(cls):
        inner = hints[field.name]
        optional = typing.get_origin(inner) in (types.UnionType, typing.Union)
        if optional:
            inner = next(each for each in typing.get_args(inner) if each is not types.NoneType)
        notes = getattr(inner, "__metadata__", ())
        # The last Meta is the field's own: an alias that several fields share has one before it.
        meta = next((note for note in reversed(notes) if isinstance(note, Meta)), Meta())
        env = next((note for note in notes if isinstance(note, Env)), None)
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        kind = without_annotations(inner)
        settings.append(Setting((field.name,), field.encode_name, inner, kind, optional, default, meta, env))
    return tuple(settings)


def settings_of(cls: type[Struct]) -> Iterator[Setting]:
    """Yield the settings of a section and of the sections inside it."""
    for each in fields_of(cls):
        yield each
        if section := section_of(each.kind):
            # Paths and names are relative to the outermost section.
            for inner in settings_of(section):
                path, name = (*each.path, *inner.path), f"{each.name}.{inner.name}"
                yield Setting(path, name, inner.hint, inner.kind, inner.optional, inner.default, inner.meta, inner.env)


def section_of(kind: Any) -> type[SettingsSection] | None:
    """Return ``kind`` if it is a section, or None for a type of values."""
    return kind if isinstance(kind, type) and issubclass(kind, SettingsSection) else None


def is_choice(kind: Any) -> TypeGuard[type[StrEnum]]:
    """Return whether a type is an enumeration of words."""
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def element_of(kind: Any) -> Any:
    """Return the annotated type of a list's elements, or None for other types."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None


def without_annotations(hint: Any) -> Any:
    """Return a type without its annotations."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _range(meta: Meta) -> str:
    low = f"more than {meta.gt:g}" if meta.gt is not None else str(meta.ge)
    return f"{low} to {meta.le}"
