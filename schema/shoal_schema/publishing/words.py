"""Format types, ranges and defaults of settings for documentation pages."""

from typing import Any

import msgspec
from msgspec import Struct

from shoal_schema.fields.declaring import (
    GIB,
    KIB,
    MIB,
    TIB,
    Setting,
    element_of,
    is_choice,
    section_of,
    without_annotations,
)
from shoal_schema.publishing.openapi import plain

_UNITS = {TIB: "TiB", GIB: "GiB", MIB: "MiB", KIB: "KiB"}


def kind_of(setting: Setting) -> str:
    """Return the type and range of a resource's field, as Markdown."""
    if (element := element_of(setting.kind)) is not None:
        return (
            "list" if section_of(element) is None and not _named(element) else f"list of {_named(element) or 'object'}"
        )
    name, meta = _named(setting.kind) or "object", setting.meta
    if meta.le is None:
        return name
    # Fields are integers: an exclusive bound is one less than the first value.
    low = int(meta.gt) + 1 if meta.gt is not None else meta.ge
    return f"{name}, {low} to {meta.le}"


def default_of(setting: Setting) -> str:
    """Return the default of a resource's field, as Markdown."""
    if setting.required:
        return "required"
    value = plain(setting.default)
    return "" if value is None or isinstance(value, dict) else f"`{_text(value)}`"


def unset_of(setting: Setting) -> str:
    """Return the value that a process uses if the setting's variable is not set, as Markdown."""
    value = setting.unset
    if value is msgspec.NODEFAULT:
        return "required"
    if value is None or value in ((), ""):
        return "none"
    if isinstance(value, Struct):
        return "the defaults of its values"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value, is_size=_is_size(setting))
    return f"`{_text(value)}`"


def range_of(setting: Setting) -> str:
    """Return the range of a setting's variable; sizes have units."""
    if setting.kind in (int, float):
        meta = setting.meta
        size = _is_size(setting)
        low = f"> {meta.gt}" if meta.gt is not None else number(meta.ge or 0, is_size=size)
        return f"{low} to {number(meta.le or 0, is_size=size)}"
    words = setting.allowed
    return ", ".join(f"`{member}`" for member in setting.kind) if is_choice(setting.kind) else words


def number(value: float, *, is_size: bool) -> str:
    """Format a number; a size (bytes) in the largest unit that divides it."""
    # Largest unit first.
    for unit, name in _UNITS.items():
        if is_size and value >= unit and value % unit == 0:
            return f"{value // unit:.0f} {name}"
    return f"{value:.17g}" if value % 1 == 0 else repr(value)


def _is_size(setting: Setting) -> bool:
    return "_bytes" in setting.path[-1]


def in_a_table(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return text.replace("|", "\\|")


def _named(kind: Any) -> str:
    kind = without_annotations(kind)
    if is_choice(kind):
        return ", ".join(f"`{member}`" for member in kind)
    return {int: "integer", float: "integer", bool: "boolean", str: "string"}.get(kind, "")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
