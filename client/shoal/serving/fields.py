"""Convert InferenceService fields, from ``--set`` to environment variables of processes."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from shoal.serving.errors import FieldError
from shoal_schema.decoding import broken_rules, nearest
from shoal_schema.fields.declaring import PROXY, FieldFault, Setting, fields_of, section_of, settings_of
from shoal_schema.process.environment import checked_length, manifest_fields, parse_text, rendered, variables
from shoal_schema.resource.service import RENAMED, InferenceServiceSpec

PARAMETERS = "model.parameters"
_RULED = ("model", "runtime", "proxy", "batching", "queue")
"""Sections whose rules depend on fields of the spec alone, not on options such as ``--api-key-file``."""
MAX_DEPTH = 100
"""Levels of nested objects and lists."""

_SECRET_NAME = re.compile("KEY|TOKEN|PASS|SECRET|SAS|CREDENTIAL")
_USER_IN_URL = re.compile(r"://[^\s/@]+@")

Values = dict[str, Any]
"""Values in the schema's types, by dotted field name."""


def parse_assignment(text: str) -> Values:
    """Parse ``FIELD=VALUE`` into a dict of the field and its value.

    ``model.parameters.NAME=VALUE`` sets one parameter; VALUE is JSON, otherwise text.

    Raises:
        FieldError: there is no ``=``, the field is unknown, or the value is invalid.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise FieldError(f"--set takes FIELD=VALUE, not {text!r}")
    # The interpreter maps bytes that are not UTF-8 to lone surrogates.
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
    """Return the field of ``FIELD=VALUE`` if it has an effect only in a cluster, otherwise None."""
    name, equals, _ = text.partition("=")
    name = name.strip()
    return name if equals and any(name == each or name.startswith(f"{each}.") for each in _clusters_fields()) else None


def _clusters_fields() -> list[str]:
    """Return the names of fields without an environment variable, which have an effect only in a cluster."""
    return [each.name for each in settings_of(InferenceServiceSpec) if not each.env and not section_of(each.kind)]


def find_field(name: str) -> Setting:
    """Return the setting of a dotted name.

    Raises:
        FieldError: the field is unknown; the message suggests the nearest.
    """
    fields = manifest_fields()
    if name in fields:
        return fields[name]
    if RENAMED.get(name) in fields:
        raise FieldError(f"there is no field {name}; it was renamed to {RENAMED[name]}")
    by_last_part = {known.rpartition(".")[2]: known for known in fields}
    near = nearest(name, [*fields, *_clusters_fields()])
    near = near if near.startswith("did you") else nearest(name, fields)
    # A field with the right last part and a wrong prefix is nearer than a list of all fields.
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


def check_rules(values: Values, environment: Mapping[str, str]) -> None:
    """Check the rules between fields, which `kubectl apply` checks in a cluster.

    Args:
        values: the fields of a manifest and of ``--set``.
        environment: variables of the processes, for fields without a value.

    Raises:
        FieldError: a rule is broken.
    """
    known = dict(values)
    for name, setting in manifest_fields().items():
        text = environment.get(setting.env.name, "").strip() if setting.env else ""
        if text and name not in known:
            # The process reports an invalid variable.
            with suppress(ValueError, RecursionError):
                known[name] = parse_text(setting, text)
    # A path on this machine is no URI of the schema. The target is checked where it is resolved.
    known["model.uri"] = "file:///model"
    try:
        ruled = (each for each in fields_of(InferenceServiceSpec) if each.name in _RULED)
        sections = {}
        for section in ruled:
            # The section's own fields only: the sections in it keep their defaults.
            given = {each.path[0]: known.get(f"{section.name}.{each.name}") for each in fields_of(section.kind)}
            sections[section.name] = section.kind(**{path: value for path, value in given.items() if value is not None})
        spec = InferenceServiceSpec(**sections)
    except FieldFault as fault:
        raise FieldError(str(fault).lstrip(".")) from None
    if faults := broken_rules(spec, ""):
        raise FieldError("; ".join(faults))


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the proxy, without the model's location and credentials."""

    def is_proxys(name: str, value: str) -> bool:
        setting = variables().get(name)
        if setting is not None and setting.env is not None:
            return PROXY in setting.env.readers
        # An unknown SHOAL_ variable is kept: the proxy reports it as misspelt.
        return name.startswith("SHOAL_") or not (_SECRET_NAME.search(name) or _USER_IN_URL.search(value))

    return {name: value for name, value in environment.items() if is_proxys(name, value)}


def to_environment(values: Values) -> dict[str, str]:
    """Return the environment variables that set the fields in ``values``.

    Raises:
        FieldError: a value cannot be an environment variable.
    """
    environment = {}
    for name, value in values.items():
        setting = find_field(name)
        if not setting.env:
            continue
        try:
            text = checked_length(setting, rendered(setting, value))
        except FieldFault as fault:
            raise FieldError(f"{name} {fault.what}") from None
        except UnicodeEncodeError:
            raise FieldError(f"{name} contains bytes that are not UTF-8 text") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise FieldError(f"{name} cannot be written as JSON: {error}") from None
        if "\0" in text:
            raise FieldError(f"{name} must not contain the character NUL")
        environment[setting.env.name] = text
    return environment


def _nested(path: list[str], value: Any) -> Any:
    return {path[0]: _nested(path[1:], value)} if path else value
