"""The fields of an InferenceService that a process reads, and their environment variables.

The table is the right column of ``docs/contracts.md`` section 3. Only types are checked here;
ranges belong to the processes, which name key, range and value themselves.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

import orjson


class FieldError(ValueError):
    """A field that does not exist, or a value of another type than the field's."""


class MachineError(Exception):
    """What was asked for is right, and this machine lacks what it needs: a free port, a package."""


class Kind(StrEnum):
    """The type of a field's value."""

    TEXT = "text"
    INTEGER = "a whole number"
    NUMBER = "a number"
    BOOLEAN = "true or false"
    LIST = "a list, comma-separated in --set"
    OBJECT = "an object"


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its dotted name, its environment variable, its type."""

    name: str
    variable: str
    kind: Kind = Kind.TEXT


FIELDS = (
    Field("metadata.name", "SHOAL_MODEL_NAME"),
    Field("model.version", "SHOAL_MODEL_VERSION"),
    Field("model.uri", "SHOAL_MODEL_URI"),
    Field("model.checksum", "SHOAL_MODEL_CHECKSUM"),
    Field("model.format", "SHOAL_MODEL_FORMAT"),
    Field("model.handler", "SHOAL_MODEL_HANDLER"),
    Field("model.parameters", "SHOAL_MODEL_PARAMETERS", Kind.OBJECT),
    Field("model.allowPickle", "SHOAL_MODEL_ALLOW_PICKLE", Kind.BOOLEAN),
    Field("runtime.device", "SHOAL_RUNTIME_DEVICE"),
    Field("runtime.dtype", "SHOAL_RUNTIME_DTYPE"),
    Field("runtime.compile", "SHOAL_RUNTIME_COMPILE", Kind.BOOLEAN),
    Field("runtime.threads", "SHOAL_RUNTIME_THREADS", Kind.INTEGER),
    Field("runtime.preprocessThreads", "SHOAL_RUNTIME_PREPROCESS_THREADS", Kind.INTEGER),
    Field("runtime.forwardTimeoutSeconds", "SHOAL_RUNTIME_FORWARD_TIMEOUT_S", Kind.NUMBER),
    Field("runtime.forwardHeaders", "SHOAL_PROXY_FORWARD_HEADERS", Kind.LIST),
    Field("batching.maxBatchSize", "SHOAL_BATCHING_MAX_BATCH_SIZE", Kind.INTEGER),
    Field("batching.allowedBatchSizes", "SHOAL_BATCHING_ALLOWED_BATCH_SIZES", Kind.LIST),
    Field("batching.policy", "SHOAL_BATCHING_POLICY"),
    Field("batching.latencyObjectiveMilliseconds", "SHOAL_BATCHING_LATENCY_OBJECTIVE_MS", Kind.NUMBER),
    Field("batching.maxDelayMilliseconds", "SHOAL_BATCHING_MAX_DELAY_MS", Kind.NUMBER),
    Field("batching.padBuckets", "SHOAL_BATCHING_PAD_BUCKETS", Kind.OBJECT),
    Field("batching.inFlight", "SHOAL_BATCHING_IN_FLIGHT", Kind.INTEGER),
    Field("batching.idempotent", "SHOAL_BATCHING_IDEMPOTENT", Kind.BOOLEAN),
    Field("batching.coalesceIdentical", "SHOAL_BATCHING_COALESCE", Kind.BOOLEAN),
    Field("queue.maxItems", "SHOAL_QUEUE_MAX_ROWS", Kind.INTEGER),
    Field("queue.maxBytes", "SHOAL_QUEUE_MAX_BYTES", Kind.INTEGER),
    Field("queue.timeoutMilliseconds", "SHOAL_QUEUE_TIMEOUT_MS", Kind.INTEGER),
    Field("queue.maxBodyBytes", "SHOAL_PROXY_MAX_BODY_BYTES", Kind.INTEGER),
    Field("queue.priorityAgeingMilliseconds", "SHOAL_QUEUE_PRIORITY_AGEING_MS", Kind.NUMBER),
    Field("queue.fairShareHeader", "SHOAL_QUEUE_FAIR_SHARE_HEADER"),
    Field("queue.fairShareWeights", "SHOAL_QUEUE_FAIR_SHARE_WEIGHTS", Kind.OBJECT),
)
BY_NAME = {field.name: field for field in FIELDS}
PARAMETERS = "model.parameters"

_VARIABLE = re.compile(r"(?P<variable>SHOAL_[A-Z_]+)(?P<value>=[\w.]+)?(?P<said> \([A-Za-z.]+\))?")
"""A variable in a process's sentence, the value that the sentence gives it, and the field that it names itself."""

Values = dict[str, Any]


def parse_assignment(text: str) -> Values:
    """Return the field and typed value of ``FIELD=VALUE``.

    ``model.parameters.NAME=VALUE`` gives one parameter: VALUE is read as JSON, else taken as text.

    Raises:
        FieldError: no ``=``, no such field, or a value of another type.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise FieldError(f"--set takes FIELD=VALUE, not {text!r}")
    if name.startswith(f"{PARAMETERS}."):
        return {PARAMETERS: _nested(name.removeprefix(f"{PARAMETERS}.").split("."), _json(value))}
    field = find_field(name)
    return {name: _PARSERS[field.kind](field, value.strip())}


def check_value(name: str, value: Any) -> Values:
    """Return the field and value of a manifest, whose values have types already.

    Raises:
        FieldError: no such field, or a value of another type.
    """
    field = find_field(name)
    if not _CHECKS[field.kind](value):
        raise FieldError(f"{name} takes {field.kind}, not {value!r:.80}")
    return {name: value}


def find_field(name: str) -> Field:
    """Return the field of a dotted name.

    Raises:
        FieldError: there is none; the message names the nearest.
    """
    if name in BY_NAME:
        return BY_NAME[name]
    raise FieldError(f"there is no field {name}; {nearest(name)}")


def nearest(name: str) -> str:
    """Return a sentence with the field that ``name`` was probably meant to be."""
    by_last_part = {known.rpartition(".")[2].lower(): known for known in BY_NAME}
    lowered = {known.lower(): known for known in BY_NAME}
    near = get_close_matches(name.lower(), lowered, n=1)
    if near:
        return f"did you mean {lowered[near[0]]}?"
    near = get_close_matches(name.rpartition(".")[2].lower(), by_last_part, n=1)
    if near:
        return f"did you mean {by_last_part[near[0]]}?"
    return f"known fields: {', '.join(BY_NAME)}"


def merge(base: Values, over: Values) -> Values:
    """Return ``base`` with the values of ``over``; objects are merged key by key."""
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        both_objects = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = merge(dict(old or {}), dict(value)) if both_objects else value
    return merged


def to_environment(values: Values) -> dict[str, str]:
    """Return the environment variables that carry ``values``."""
    return {BY_NAME[name].variable: _text(value) for name, value in values.items()}


def with_field_names(sentence: str) -> str:
    """Return a process's sentence with the field that stands behind each variable it names."""
    names = {field.variable: field.name for field in FIELDS}

    def named(match: re.Match[str]) -> str:
        variable, value, said = match.group("variable"), match.group("value") or "", match.group("said") or ""
        field = names.get(variable)
        if field is None:
            return match.group()
        return f"{field}{value} ({variable}){'' if said == f' ({field})' else said}"

    return _VARIABLE.sub(named, sentence)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(str(each) for each in value)
    return orjson.dumps(value).decode() if isinstance(value, Mapping) else str(value)


def _nested(path: list[str], value: Any) -> Any:
    return {path[0]: _nested(path[1:], value)} if path else value


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _parse_integer(field: Field, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _wrong(field, text) from None


def _parse_number(field: Field, text: str) -> int | float:
    value = _json(text)
    if not _is_number(value):
        raise _wrong(field, text)
    return value  # type: ignore[no-any-return]


def _parse_boolean(field: Field, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _wrong(field, text)
    return text.lower() == "true"


def _parse_list(field: Field, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise _wrong(field, text)
    return parts


def _parse_object(field: Field, text: str) -> Any:
    value = _json(text)
    if not isinstance(value, dict):
        raise _wrong(field, text)
    return value


def _wrong(field: Field, text: str) -> FieldError:
    return FieldError(f"{field.name} takes {field.kind}, not {text!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str | int) for each in value)


_PARSERS: dict[Kind, Callable[[Field, str], Any]] = {
    Kind.TEXT: lambda _field, text: text,
    Kind.INTEGER: _parse_integer,
    Kind.NUMBER: _parse_number,
    Kind.BOOLEAN: _parse_boolean,
    Kind.LIST: _parse_list,
    Kind.OBJECT: _parse_object,
}
_CHECKS: dict[Kind, Callable[[Any], bool]] = {
    Kind.TEXT: lambda value: isinstance(value, str),
    Kind.INTEGER: _is_integer,
    Kind.NUMBER: _is_number,
    Kind.BOOLEAN: lambda value: isinstance(value, bool),
    Kind.LIST: _is_list,
    Kind.OBJECT: lambda value: isinstance(value, dict),
}
