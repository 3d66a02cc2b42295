"""What a setting may be, in words."""

from typing import Any

import msgspec

from shoal_schema.declaring import Setting, is_choice

Meta = msgspec.Meta


def allowed(setting: Setting) -> str:
    """Return what a variable may hold: a range, a choice, a form."""
    if setting.env and setting.env.allowed:
        return setting.env.allowed
    kind = setting.kind
    if kind is bool:
        return "true or false"
    if is_choice(kind):
        return ", ".join(kind)
    if kind in (int, float):
        return number_range(setting.meta)
    if element_type := _number_element(setting):
        return f"numbers of {number_range(element_type)}, comma-separated"
    return {str: "a text", tuple: "comma-separated"}.get(kind, "a JSON object")


def number_range(meta: Meta) -> str:
    """Return the bounds of a number."""
    low = f"more than {meta.gt:g}" if meta.gt is not None else str(meta.ge)
    return f"{low} to {meta.le}"


def _number_element(setting: Setting) -> Meta | None:
    arguments: Any = getattr(setting.kind, "__args__", ())
    notes = getattr(arguments[0], "__metadata__", ()) if arguments else ()
    return next((note for note in notes if isinstance(note, Meta) and note.le is not None), None)
