"""Settings of a process with some of them changed, by the name of the setting alone."""

from typing import Any, TypeVar

from msgspec import Struct, structs

T = TypeVar("T", bound=Struct)


def arranged(settings: T, **changes: Any) -> T:
    """Return settings with others in the sections that declare them; ``section__name`` where several do."""
    for name, value in changes.items():
        section, _, own = name.rpartition("__")
        (found,) = (
            {section} if section else {part for part in settings.__struct_fields__ if _declares(settings, part, own)}
        )
        settings = structs.replace(settings, **{found: structs.replace(getattr(settings, found), **{own: value})})
    return settings


def _declares(settings: Struct, section: str, name: str) -> bool:
    return name in getattr(settings, section).__struct_fields__
