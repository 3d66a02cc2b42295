"""Settings as environment variables of processes: reading and writing."""

import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from shoal_schema.decoding import SpecError, decode, decode_text
from shoal_schema.fields.declaring import (
    KIB,
    FieldFault,
    Process,
    Setting,
    element_of,
    fields_of,
    is_choice,
    section_of,
    settings_of,
    without_annotations,
)
from shoal_schema.fields.redaction import redacted_value
from shoal_schema.fields.rules import broken_among
from shoal_schema.process.settings.activator import ActivatorProcess
from shoal_schema.process.settings.batch import BatchProcess
from shoal_schema.process.settings.log import LogSettings
from shoal_schema.process.settings.model import Metadata
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.process.settings.proxy import ProxyProcess
from shoal_schema.process.settings.runtime import RuntimeProcess
from shoal_schema.process.unknown_variables import unknown_variable_errors
from shoal_schema.resource.offline import BatchInferenceSpec
from shoal_schema.resource.service import InferenceServiceSpec

T = TypeVar("T", bound=Struct)

MAX_VARIABLE_BYTES = 128 * KIB - 1
"""Linux's limit of one variable with its name and equals sign (MAX_ARG_STRLEN less the final NUL)."""


class SettingsError(ValueError):
    """Error of a malformed, missing or misspelt setting; the message has the allowed range and the value."""


@cache
def variables() -> Mapping[str, Setting]:
    """Return every setting by its variable, settings of the resource first."""
    processes = (ProxyProcess, RuntimeProcess, OperatorProcess, ActivatorProcess, BatchProcess)
    roots = (Metadata, InferenceServiceSpec, BatchInferenceSpec, LogSettings, *processes)
    return {each.env.name: each for root in roots for each in settings_of(root) if each.env}


@cache
def manifest_fields() -> Mapping[str, Setting]:
    """Return the settings of a manifest that a process reads, by field (``queue.maxRows``)."""
    named = {f"metadata.{each.name}": each for each in settings_of(Metadata)}
    return named | {each.name: each for each in settings_of(InferenceServiceSpec) if each.env}


def read(
    cls: type[T], environ: Mapping[str, str], process: Process, *, faults: Sequence[str] = (), show_values: bool = True
) -> T:
    """Return the sections of ``cls`` from an environment; an empty variable means the default.

    Args:
        cls: a struct of sections.
        environ: environment variables.
        process: the process that reads the settings.
        faults: errors found before, to report together with those found here.
        show_values: whether errors may contain values.

    Raises:
        SettingsError: names every variable that is misspelt, malformed or out of range.
    """
    # Report every fault at once, not only the first.
    faults = [*unknown_variable_errors(environ, process, variables().keys()), *faults]
    sections = {
        each.path[0]: _section(each.kind, environ, process, faults, show_values=show_values) for each in fields_of(cls)
    }
    if faults:
        raise SettingsError("; ".join(faults))
    return cls(**sections)


def _section(
    cls: type[Struct], environ: Mapping[str, str], process: Process, faults: list[str], *, show_values: bool
) -> Any:
    values = {}
    for each in fields_of(cls):
        # Settings of other processes are ignored: an environment may be shared.
        if each.env is None or process not in each.env.readers:
            continue
        text = environ.get(each.env.name, "").strip()
        try:
            values[each.path[0]] = parse_text(each, text) if text else each.unset
        except SpecError as error:
            faults.append(f"{each.env.name}: {error}")
        except (ValueError, RecursionError):  # RecursionError: deeply nested JSON
            value = f", not {redacted_value(text)!r:.200}" if show_values else ""
            faults.append(f"{each.env.name} must be {each.allowed}{value}")
            values[each.path[0]] = each.unset
    try:
        section = cls(**values)
    except FieldFault as fault:
        # A fault of several fields names one of them.
        faults.append(f"{_variable(cls, fault.name)} {fault.what}")
        return None
    if any(values.get(each.path[0]) not in (None, each.unset) for each in fields_of(cls)):
        # `parse_text` has checked the sections inside it.
        own = broken_among(getattr(cls, "RULES", ()), section)
        faults += [f"{_variable(cls, rule.path)}: {rule.message}" for rule in own]
    return section


def _variable(cls: type[Struct], name: str) -> str:
    """Return the variable of a field; the field's name if it has no variable."""
    found = next(each for each in fields_of(cls) if each.name == name)
    return found.env.name if found.env else name


def parse_text(setting: Setting, text: str) -> Any:
    """Return the value of a setting from the text of its variable or of ``--set``.

    Raises:
        ValueError: the text is invalid.
    """
    if section := section_of(setting.kind):
        return decode(section, msgspec.json.decode(text), setting.name)
    hint = setting.env.reads if setting.env and setting.env.reads else setting.hint
    kind = without_annotations(hint)
    value: Any = text
    if element_of(kind) is not None:
        value = [part.strip() for part in text.split(",") if part.strip()]
    elif kind is bool:
        # Words only: msgspec would convert numbers too. A list is never a boolean.
        value = {"true": True, "false": False}.get(text.lower(), [])
    elif is_choice(kind):
        value = next((member for member in kind if member.lower() == text.lower()), text)
    elif typing.get_origin(kind) is dict:
        value = msgspec.json.decode(text)
    return msgspec.convert(value, hint, strict=False, dec_hook=decode_text)


def rendered(setting: Setting, value: Any) -> str:
    """Return a setting's value as the text of its environment variable."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(msgspec.to_builtins(value), sort_keys=True, separators=(",", ":"))
    # Sorted, so that the pod template does not depend on the order in a spec.
    if isinstance(value, tuple):
        return ",".join(str(item) for item in sorted(value))
    # 17 significant digits are read back exactly.
    if isinstance(value, float):
        return f"{value:.17g}"
    return str(value).lower() if setting.env and setting.env.lower else str(value)


def checked_length(setting: Setting, text: str) -> str:
    """Return the text of a setting's variable after checking its length.

    Raises:
        FieldFault: the variable is longer than Linux allows.
    """
    assert setting.env is not None
    size = len(f"{setting.env.name}={text}".encode())
    if size > MAX_VARIABLE_BYTES:
        raise FieldFault(
            setting.name,
            f"takes {size} bytes in the environment ({setting.env.name}), more than the {MAX_VARIABLE_BYTES} that"
            " Linux allows. Put large values into a file beside the model",
        )
    return text


def variables_of_spec(section: Struct, process: Process, path: str = "spec") -> Iterator[tuple[str, str]]:
    """Yield name and text of the variables that a process reads from a spec, in the spec's order.

    Raises:
        SpecError: a variable is longer than Linux allows.
    """
    for each in fields_of(type(section)):
        value = getattr(section, each.path[0])
        if section_of(type(value)):
            yield from variables_of_spec(value, process, f"{path}.{each.name}")
        # Unset fields are left out, so that the process has its own default.
        elif each.env and process in each.env.readers and value is not None and value != ():
            try:
                yield each.env.name, checked_length(each, rendered(each, value))
            except FieldFault as fault:
                raise SpecError(f"{path}{fault}") from None
