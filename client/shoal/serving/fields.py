"""Fields of an InferenceService as ``--set`` gives them, on their way to the processes' environment."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from shoal_schema.declaring import PROXY, FieldFault, Setting, section_of, settings_of
from shoal_schema.decoding import nearest
from shoal_schema.environment import fitting, manifest_fields, parse_text, rendered, variables
from shoal_schema.headers import OWN_HEADERS
from shoal_schema.resource.service import RENAMED, InferenceServiceSpec

PARAMETERS = "model.parameters"
MAX_DEPTH = 100
"""Levels of objects and lists, which no parameters and no manifest need."""

_VARIABLE = re.compile(r"(?P<set>\bset )?(?P<variable>SHOAL_[A-Z_]+)(?P<value>=[\w.,]*\w)?(?P<said> \([A-Za-z.]+\))?")
"""A variable in a process's sentence, the value that the sentence gives it, and the field that it names itself."""

_SECRET_NAME = re.compile("KEY|TOKEN|PASS|SECRET|SAS|CREDENTIAL")
_USER_IN_URL = re.compile(r"://[^\s/@]+@")

Values = dict[str, Any]
"""By the field's dotted name, values as the schema types them."""


class FieldError(ValueError):
    """A field that does not exist, or a value that it does not take."""


class MachineError(Exception):
    """What was asked for is right, and this machine lacks what it needs: a free port, a package."""


def parse_assignment(text: str) -> Values:
    """Return the field and value of ``FIELD=VALUE``.

    ``model.parameters.NAME=VALUE`` gives one parameter: VALUE is read as JSON, else taken as text.

    Raises:
        FieldError: no ``=``, no such field, or a value that it does not take.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise FieldError(f"--set takes FIELD=VALUE, not {text!r}")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise FieldError(f"--set takes UTF-8 text, not {text!r}")
    if name.startswith(f"{PARAMETERS}."):
        path = name.removeprefix(f"{PARAMETERS}.").split(".")
        if len(path) > MAX_DEPTH:
            raise FieldError(f"{PARAMETERS} may be nested {MAX_DEPTH} levels deep, not {len(path)}")
        with suppress(orjson.JSONDecodeError):
            return {PARAMETERS: _nested(path, orjson.loads(value))}
        return {PARAMETERS: _nested(path, value)}
    setting = find_field(name)
    try:
        return {name: parse_text(setting, value.strip())}
    except ValueError:
        raise FieldError(f"{name} must be {setting.allowed}, not {value.strip()!r}") from None


def without_effect(text: str) -> str | None:
    """Return the field of ``FIELD=VALUE`` if only a cluster acts on it (or on the field it lies in), else None."""
    name, equals, _ = text.partition("=")
    name = name.strip()
    return name if equals and any(name == each or name.startswith(f"{each}.") for each in _clusters_fields()) else None


def _clusters_fields() -> list[str]:
    """Return the fields that no process reads."""
    return [each.name for each in settings_of(InferenceServiceSpec) if not each.env and not section_of(each.kind)]


def find_field(name: str) -> Setting:
    """Return the setting of a dotted name.

    Raises:
        FieldError: there is none; the message names the nearest.
    """
    fields = manifest_fields()
    if name in fields:
        return fields[name]
    if RENAMED.get(name) in fields:
        raise FieldError(f"there is no field {name}; it is {RENAMED[name]} now")
    by_last_part = {known.rpartition(".")[2]: known for known in fields}
    near = nearest(name, [*fields, *_clusters_fields()])
    near = near if near.startswith("did you") else nearest(name, fields)
    last = nearest(name.rpartition(".")[2], by_last_part)
    if near.startswith("known") and not last.startswith("known"):
        near = f"did you mean {by_last_part[last.removeprefix('did you mean ').removesuffix('?')]}?"
    raise FieldError(f"there is no field {name}; {near}")


def merge(base: Values, over: Values) -> Values:
    """Return ``base`` with the values of ``over``; objects are merged key by key."""
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        both_objects = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = merge(dict(old or {}), dict(value)) if both_objects else value
    return merged


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy's part of an environment: neither where the model comes from nor what opens it."""
    return {name: value for name, value in environment.items() if not _is_not_the_proxys(name, value)}


def _is_not_the_proxys(name: str, value: str) -> bool:
    setting = variables().get(name)
    if setting is not None and setting.env is not None:
        return PROXY not in setting.env.readers
    # A misspelt one of ours is the proxy's to tell.
    return not name.startswith("SHOAL_") and bool(_SECRET_NAME.search(name) or _USER_IN_URL.search(value))


def to_environment(values: Values) -> dict[str, str]:
    """Return the environment variables that carry ``values``.

    Raises:
        FieldError: a value that no environment can carry, or a header that is no caller's.
    """
    for name in ("proxy.forwardHeaders", "queue.fairShareHeader"):
        given = values.get(name) or ()
        if own := {each.lower() for each in ((given,) if isinstance(given, str) else given)} & OWN_HEADERS:
            raise FieldError(f"{name} must not name {', '.join(sorted(own))}: the connection's own")
    settings = {name: find_field(name) for name in values}
    return {each.env.name: _carried(name, each, values[name]) for name, each in settings.items() if each.env}


def _carried(name: str, setting: Setting, value: Any) -> str:
    try:
        text = fitting(setting, rendered(setting, value))
    except FieldFault as fault:
        raise FieldError(f"{name} {fault.what}") from None
    except UnicodeEncodeError:
        raise FieldError(f"{name} holds bytes that are not UTF-8 text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise FieldError(f"{name} cannot be written as JSON: {error}") from None
    if "\0" in text:
        raise FieldError(f"{name} holds the character NUL, which no setting may")
    return text


def with_field_names(sentence: str) -> str:
    """Return a process's sentence with the field that stands behind each variable it names."""
    names = {each.env.name: name for name, each in manifest_fields().items() if each.env}

    def named(match: re.Match[str]) -> str:
        variable, value, said = match.group("variable"), match.group("value") or "", match.group("said") or ""
        field = names.get(variable)
        if field is None:
            return match.group()
        asked = ("pass --set " if value else match["set"]) if match["set"] else ""
        return f"{asked}{field}{value} ({variable}){'' if said == f' ({field})' else said}"

    return _VARIABLE.sub(named, sentence)


def _nested(path: list[str], value: Any) -> Any:
    return {path[0]: _nested(path[1:], value)} if path else value
