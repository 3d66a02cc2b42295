"""The environment of a process: what the operator and ``shoal serve`` write, and what the process reads."""

import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from shoal_schema.declaring import (
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
from shoal_schema.decoding import SpecError, decode, decode_text
from shoal_schema.misspelt import misspelt
from shoal_schema.processes import (
    BatchProcess,
    LogSettings,
    Metadata,
    OperatorProcess,
    ProxyProcess,
    RuntimeProcess,
    WaitingProcess,
)
from shoal_schema.resource.offline import BatchInferenceSpec
from shoal_schema.resource.service import InferenceServiceSpec

T = TypeVar("T", bound=Struct)

MAX_VARIABLE_BYTES = 128 * KIB - 1
"""What Linux takes of one variable, name and equals sign included (MAX_ARG_STRLEN, and a NUL at the end)."""


class SettingsError(ValueError):
    """A setting is malformed, out of range, missing or misspelt; the message gives name, allowed range and value."""


@cache
def variables() -> Mapping[str, Setting]:
    """Return every setting that a process reads, by its variable; those of the resource come first."""
    processes = (ProxyProcess, RuntimeProcess, OperatorProcess, WaitingProcess, BatchProcess)
    roots = (Metadata, InferenceServiceSpec, BatchInferenceSpec, LogSettings, *processes)
    return {each.env.name: each for root in roots for each in settings_of(root) if each.env}


@cache
def manifest_fields() -> Mapping[str, Setting]:
    """Return what of a manifest a process reads, by the names that users write (``queue.maxRows``)."""
    named = {f"metadata.{each.name}": each for each in settings_of(Metadata)}
    return named | {each.name: each for each in settings_of(InferenceServiceSpec) if each.env}


def read(
    cls: type[T], environ: Mapping[str, str], process: Process, *, faults: Sequence[str] = (), told: bool = True
) -> T:
    """Return the sections of ``cls`` as a process finds them; an empty variable means the default.

    Args:
        cls: a struct of sections.
        environ: names and values.
        process: who reads.
        faults: what is wrong already, to be told with the rest.
        told: whether values may be; else a variable's name and range alone are.

    Raises:
        SettingsError: names every variable that is misspelt, malformed or out of range, with its value.
    """
    faults = [*misspelt(environ, process, variables().keys()), *faults]
    sections = {each.path[0]: _section(each.kind, environ, process, faults, told=told) for each in fields_of(cls)}
    if faults:
        raise SettingsError("; ".join(faults))
    return cls(**sections)


def _section(cls: type[Struct], environ: Mapping[str, str], process: Process, faults: list[str], *, told: bool) -> Any:
    values = {}
    for each in fields_of(cls):
        if each.env is None or process not in each.env.readers:
            continue
        text = environ.get(each.env.name, "").strip()
        try:
            values[each.path[0]] = parse_text(each, text) if text else each.unset
        except SpecError as error:
            faults.append(f"{each.env.name}: {error}")
        except (ValueError, RecursionError):  # the latter of JSON within JSON within JSON
            value = f", not {text!r:.200}" if told else ""
            faults.append(f"{each.env.name} must be {each.allowed}{value}")
            values[each.path[0]] = each.unset
    try:
        return cls(**values)
    except FieldFault as fault:
        named = next(each for each in fields_of(cls) if each.name == fault.name)
        faults.append(f"{named.env.name if named.env else named.name} {fault.what}")
        return None


def parse_text(setting: Setting, text: str) -> Any:
    """Return the value that a variable, or ``--set``, gives to a setting.

    Raises:
        ValueError: it does not fit.
    """
    if section := section_of(setting.kind):
        return decode(section, msgspec.json.decode(text), setting.name)
    hint = setting.env.reads if setting.env and setting.env.reads else setting.hint
    return msgspec.convert(_plain(without_annotations(hint), text), hint, strict=False, dec_hook=decode_text)


def _plain(kind: Any, text: str) -> Any:
    if element_of(kind) is not None:
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind is bool:
        # Only words: a number does not answer a question.
        return {"true": True, "false": False}.get(text.lower(), [])
    if is_choice(kind):
        return next((member for member in kind if member.lower() == text.lower()), text)
    return msgspec.json.decode(text) if typing.get_origin(kind) is dict else text


def rendered(setting: Setting, value: Any) -> str:
    """Return a setting's value as the text of its variable."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(msgspec.to_builtins(value), sort_keys=True, separators=(",", ":"))
    if isinstance(value, tuple):
        return ",".join(str(item) for item in sorted(value))
    if isinstance(value, float):
        return f"{value:.17g}"
    return str(value).lower() if setting.env and setting.env.lower else str(value)


def fitting(setting: Setting, text: str) -> str:
    """Return the text of a setting's variable, if a process can be started with it.

    Raises:
        FieldFault: Linux refuses so long a variable, whatever else there is.
    """
    assert setting.env is not None
    size = len(f"{setting.env.name}={text}".encode())
    if size > MAX_VARIABLE_BYTES:
        raise FieldFault(
            setting.name,
            f"takes {size} bytes in the environment ({setting.env.name}), where Linux allows one variable"
            f" {MAX_VARIABLE_BYTES}: put what is large into a file beside the model",
        )
    return text


def given(section: Struct, process: Process, path: str = "spec") -> Iterator[tuple[str, str]]:
    """Yield name and text of the variables that a spec gives to a process, in the spec's order.

    Raises:
        SpecError: a value is longer than a variable may be.
    """
    for each in fields_of(type(section)):
        value = getattr(section, each.path[0])
        if section_of(type(value)):
            yield from given(value, process, f"{path}.{each.name}")
        elif each.env and process in each.env.readers and value is not None and value != ():
            try:
                yield each.env.name, fitting(each, rendered(each, value))
            except FieldFault as fault:
                raise SpecError(f"{path}{fault}") from None
