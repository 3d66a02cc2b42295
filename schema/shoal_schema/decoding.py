"""JSON -> sections, with an error that names the field, what is allowed, and what stands there.

The API server has checked a stored spec against its schema and filled in the defaults. The operator does not trust
that: the object may be older than the schema.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from shoal_schema.addresses import Address, TcpAddress, parse_address, parse_tcp_address
from shoal_schema.declaring import Json, element_of, fields_of, section_of
from shoal_schema.quantities import Quantity, read_quantity
from shoal_schema.resource.service import InferenceServiceSpec

T = TypeVar("T", bound=Struct)
_PLACE = re.compile(r"(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>.*)`)?", re.DOTALL)
_STEPS = re.compile(r"\.(?P<name>\w+)|\[(?P<index>\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")


class SpecError(ValueError):
    """A spec that cannot work; the message names the field, what is allowed, and what it is."""


def parse_spec(resource: Json) -> InferenceServiceSpec:
    """Return the typed spec of an ``InferenceService``.

    Raises:
        SpecError: a field is missing, of the wrong type, or out of range.
    """
    return decode(InferenceServiceSpec, resource.get("spec", {}), "spec")


def decode(cls: type[T], value: Any, path: str) -> T:
    """Return a section from JSON; unknown names are refused, null is the same as leaving a field out.

    Raises:
        SpecError: the value does not fit.
    """
    try:
        return msgspec.convert(_without_nulls(cls, value), cls, dec_hook=decode_text)
    except msgspec.ValidationError as error:
        raise SpecError(_sentence(str(error), cls, value, path)) from None


def decode_text(kind: type, value: Any) -> Any:
    """Return a value of a type that JSON does not know (msgspec's ``dec_hook``).

    Raises:
        ValueError: it is none.
    """
    if kind is Quantity:
        return read_quantity(value)
    if kind is TcpAddress:
        return parse_tcp_address(value)
    if kind is Address:
        return parse_address(value)
    raise NotImplementedError(kind)


def _without_nulls(cls: type[Struct], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kinds = {each.name: each.kind for each in fields_of(cls)}
    return {name: _part(kinds.get(name), part) for name, part in value.items() if part is not None}


def _part(kind: Any, value: Any) -> Any:
    element = element_of(kind)
    if element is not None and isinstance(value, list):
        return [_part(element, each) for each in value]
    return _without_nulls(section, value) if (section := section_of(kind)) else value


def _sentence(text: str, cls: type[Struct], value: Any, path: str) -> str:
    """Return msgspec's finding with our path, and with what stands there."""
    match = _PLACE.fullmatch(text)
    what, place = (match["what"], match["path"] or "") if match else (text, "")
    if unknown := _UNKNOWN.fullmatch(what):
        return f"there is no field {path}{place}.{unknown[1]}; {nearest(unknown[1], _known(cls, place))}"
    found = _found(value, place)
    return f"{path}{place}: {what[0].lower()}{what[1:]}{found}"


def nearest(name: str, known: Collection[str]) -> str:
    """Return a sentence with what a name was probably meant to be, or with all that there are."""
    lowered = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), lowered, n=1)
    return f"did you mean {lowered[near[0]]}?" if near else f"known are {', '.join(sorted(known))}"


def _known(cls: Any, place: str) -> list[str]:
    for step in _STEPS.finditer(place):
        if step["name"]:
            cls = next(each.kind for each in fields_of(cls) if each.name == step["name"])
        else:
            cls = element_of(cls)
    return [each.name for each in fields_of(cls)]


def _found(value: Any, place: str) -> str:
    for step in _STEPS.finditer(place):
        if step["index"] == "...":
            return ""
        value = value[step["name"]] if step["name"] else value[int(step["index"])]
    return "" if isinstance(value, dict | list) else f", not {value!r:.200}"
