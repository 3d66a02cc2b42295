"""How a setting is declared: its type, range and default; what it means; which processes read it, under what name.

A setting is one annotated attribute of a `Section`. Sections that users write in an ``InferenceService`` lie in
``resource``, those that only the environment holds in ``processes``.
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

from shoal_schema.quantities import Quantity

Json = dict[str, Any]
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
NAME = r"^[A-Za-z0-9._-]+\Z"
"""The pattern of a model's name and version, which stand in paths.

Patterns end in ``\\Z``: Python's ``$`` lets a newline follow. API servers are told ``$``, which does not there.
"""
NAME_IN_WORDS = "letters, digits, '.', '_' and '-'"


def _written(value: Any) -> str | int:
    if isinstance(value, Quantity):
        return value.written
    raise NotImplementedError(type(value))


def as_json(value: Any) -> Any:
    """Return a section, or a tuple of them, as JSON, without what is at its default."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_written))


class Process(StrEnum):
    """Who reads a setting."""

    PROXY = "proxy"
    RUNTIME = "runtime"
    MODEL = "model"
    """The init container that downloads; the runtime's program."""
    OPERATOR = "operator"
    WAITING = "waiting room"
    """Holds requests of services that sleep; a program of the proxy's distribution."""
    BATCH = "batch"
    """Scores rows that lie somewhere; the runtime's program."""


PROXY, RUNTIME, MODEL, OPERATOR, WAITING, BATCH = Process


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


class FieldFault(ValueError):
    """What is wrong with one field of a section, where its type cannot say it.

    Args:
        name: the field's, in JSON.
        what: the rest of the sentence.
    """

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f".{name} {what}")
        self.name = name
        self.what = what


class Section(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Settings that belong together; in JSON their names are in camelCase."""

    RULES: ClassVar[tuple[Rule, ...]] = ()


class Env:
    """The environment variable of a setting.

    Args:
        name: of the variable.
        readers: the processes that read it.
        unset: what a process takes when the variable is missing, where that is not the field's default.
        reads: the type that a process reads, where it takes more than the resource may hold.
        allowed: what may stand there, in words, where the type does not say it.
        lower: the operator writes the value in lower case.
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
    """One declared setting.

    Args:
        path: attributes from the root, ``("batching", "max_batch_size")``.
        name: the same in JSON, dotted: ``batching.maxBatchSize``.
        hint: its annotation without ``None``, as msgspec takes it.
        kind: its type without annotations.
        default: `msgspec.NODEFAULT` where one must be given.
    """

    path: tuple[str, ...]
    name: str
    hint: Any
    kind: Any
    optional: bool
    default: Any
    meta: Meta
    env: Env | None

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is msgspec.NODEFAULT

    @property
    def description(self) -> str:
        """What it means, in a sentence or more; of a section, what its class says."""
        return self.meta.description or getattr(section_of(self.kind), "__doc__", "") or ""

    @property
    def unset(self) -> Any:
        """What a process takes that is told nothing."""
        return self.default if self.env is None or self.env.unset is msgspec.UNSET else self.env.unset

    @property
    def allowed(self) -> str:
        """What may stand in its variable, in words: a range, a choice, a form."""
        if self.env and self.env.allowed:
            return self.env.allowed
        if self.kind is bool:
            return "true or false"
        if is_choice(self.kind):
            return ", ".join(self.kind)
        if self.kind in (int, float):
            return _range(self.meta)
        element = next(
            (note for note in getattr(element_of(self.kind), "__metadata__", ()) if note.le is not None), None
        )
        if element is not None:
            return f"numbers of {_range(element)}, comma-separated"
        return {str: "a text"}.get(self.kind, "comma-separated" if element_of(self.kind) else "a JSON object")


@cache
def fields_of(cls: type[Struct]) -> tuple[Setting, ...]:
    """Return what a section declares itself, in the order of the source."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_setting(each, hints[each.name]) for each in structs.fields(cls))


def settings_of(cls: type[Struct]) -> Iterator[Setting]:
    """Yield the settings of a section and of those inside it."""
    for each in fields_of(cls):
        yield each
        if section := section_of(each.kind):
            for inner in settings_of(section):
                path, name = (*each.path, *inner.path), f"{each.name}.{inner.name}"
                yield Setting(path, name, inner.hint, inner.kind, inner.optional, inner.default, inner.meta, inner.env)


def section_of(kind: Any) -> type[Section] | None:
    """Return the section that a field holds, or None where it holds a value."""
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def is_choice(kind: Any) -> TypeGuard[type[StrEnum]]:
    """Return whether a type is a choice among words."""
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def element_of(kind: Any) -> Any:
    """Return the annotated type of a list's elements, or None where it is not a list."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None


def without_annotations(hint: Any) -> Any:
    """Return the type that an annotated one annotates."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _range(meta: Meta) -> str:
    low = f"more than {meta.gt:g}" if meta.gt is not None else str(meta.ge)
    return f"{low} to {meta.le}"


def _setting(field: structs.FieldInfo, hint: Any) -> Setting:
    inner, optional = _without_none(hint)
    notes = getattr(inner, "__metadata__", ())
    # The last: an alias that several fields share has a note of its own before it.
    meta = next((note for note in reversed(notes) if isinstance(note, Meta)), Meta())
    env = next((note for note in notes if isinstance(note, Env)), None)
    kind = without_annotations(inner)
    return Setting((field.name,), field.encode_name, inner, kind, optional, _default(field), meta, env)


def _default(field: structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    inner = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
    return inner[0], True
