"""JSON -> sections, with an error that names the field, what is allowed, and what stands there.

The API server has checked a stored spec against its schema and filled in the defaults. The operator does not trust
that: the object may be older than the schema.
"""

import json
import re
import typing
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from shoal_schema.addresses import Address, TcpAddress, parse_address, parse_tcp_address
from shoal_schema.declaring import Json, as_json, element_of, fields_of, section_of, without_annotations
from shoal_schema.expressions import ExpressionError, parse
from shoal_schema.graphs.faults import GraphError
from shoal_schema.graphs.plan import make_plan
from shoal_schema.quantities import Quantity, read_quantity
from shoal_schema.redaction import redacted
from shoal_schema.resource.graph import InferenceGraphSpec
from shoal_schema.resource.offline import BatchInferenceSpec
from shoal_schema.resource.service import RENAMED, InferenceServiceSpec

T = TypeVar("T", bound=Struct)
MOST_GRAPH_BYTES = 100_000
"""Linux hands a process no variable of more than 131,072; names of services become URLs in it."""
_STEPS = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")
_WORDS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"Object missing required field `(?P<field>.*)`", "{path} is required"),
        (r"Object contains unknown field `(?P<field>.*)`", "there is no field {path}; {hint}"),
        (
            r"Expected `str`(?:, got `\w+`)? - at `key` in `\$(.*)`",
            "{path}{0}: every name must be of type str; quote one that YAML reads as something else, as on, no and 1",
        ),
        (r"Expected `(\w+)(?: \| null)?`, got `.*`", "{path} must be of type {0}"),
        (r"Invalid enum value .*", "{path} must be one of {known}"),
        (r"Expected `\w+` >= (.*)", "{path} must be at least {0}"),
        (r"Expected `\w+` > (.*)", "{path} must be more than {0}"),
        (r"Expected `\w+` <= (.*)", "{path} must be at most {0}"),
        (r"Expected `str` of length <= (.*)", "{path} must have at most {0} characters"),
        (r"Expected `\w+` of length <= (.*)", "{path} must have at most {0} items"),
        (r"Expected `\w+` of length >= (.*)", "{path} must have at least {0} items"),
        (r"Expected `str` matching regex ['\"](.*)['\"]", "{path} must match {0}"),
        (r"(is not a quantity.*|is a quantity.*)", "{path} {0}"),
    )
)
"""What msgspec finds -> what we say."""


class SpecError(ValueError):
    """A spec that cannot work; the message names the field, what is allowed, and what it is."""


def parse_spec(resource: Json) -> InferenceServiceSpec:
    """Return the typed spec of an ``InferenceService``.

    Raises:
        SpecError: a field is missing, of the wrong type, or out of range.
    """
    return decode(InferenceServiceSpec, resource.get("spec", {}), "spec")


def parse_batch_spec(resource: Json) -> BatchInferenceSpec:
    """Return the typed spec of a ``BatchInference``.

    Raises:
        SpecError: a field is missing, of the wrong type, or out of range.
    """
    spec = decode(BatchInferenceSpec, resource.get("spec", {}), "spec")
    if spec.model.uri is None:
        raise SpecError("spec.model.uri is required")
    if spec.input.where is not None:
        try:
            parse(spec.input.where)
        except ExpressionError as error:
            raise SpecError(f"spec.input.where {spec.input.where!r:.200} {error}") from None
    return spec


class GraphSpecError(SpecError):
    """A graph that cannot work, whatever its models are; ``fault`` says why in a word."""

    def __init__(self, error: GraphError) -> None:
        super().__init__(f"spec.{error}")
        self.fault = error.fault


def parse_graph_spec(resource: Json) -> InferenceGraphSpec:
    """Return the typed spec of an ``InferenceGraph`` that can work, as far as can be told without its models.

    Raises:
        SpecError: a field is missing, of the wrong type, or out of range.
        GraphSpecError: the steps cannot work together.
    """
    spec = decode(InferenceGraphSpec, resource.get("spec", {}), "spec")
    try:
        make_plan(spec, resource["metadata"]["name"])
        _check_size(spec)
    except GraphError as error:
        raise GraphSpecError(error) from None
    return spec


def _check_size(spec: InferenceGraphSpec) -> None:
    """Refuse what no variable of a process can hold, which is how its proxy is told."""
    size_bytes = len(json.dumps(as_json(spec.graph(spec.steps)), ensure_ascii=False).encode(errors="surrogatepass"))
    if size_bytes > MOST_GRAPH_BYTES:
        path = "composer.source" if spec.composer and spec.composer.source else "steps"
        raise GraphError(path, f"the graph takes {size_bytes} bytes as JSON; at most {MOST_GRAPH_BYTES} are taken")


def decode(cls: type[T], value: Any, path: str) -> T:
    """Return a section from JSON; unknown names are refused, null is the same as leaving a field out.

    Raises:
        SpecError: the value does not fit.
    """
    try:
        return msgspec.convert(_without_nulls(cls, value), cls, dec_hook=decode_text)
    except msgspec.ValidationError as error:
        raise SpecError(_sentence(str(error), cls, value, path)) from None
    except UnicodeEncodeError as error:  # JSON may hold half a pair of surrogates, which is not text
        raise SpecError(f"{path} must be text throughout, not {error.object!r:.200}") from None


def decode_text(kind: type, value: Any) -> Any:
    """Return a value of a type that JSON does not know (msgspec's ``dec_hook``).

    Raises:
        ValueError: it does not fit the type.
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
    """Return msgspec's finding in our words, with our path, and with what stands there."""
    what, _, place = text.partition(" - at `$")
    place = _keyed(cls, value, place.removesuffix("`"))
    found, words = next(((found, words) for pattern, words in _WORDS if (found := pattern.fullmatch(what))), (None, ""))
    if found is None:
        return f"{path}{place}{what}" if what.startswith(".") else f"{path}{place}: {what}"
    if "field" in found.groupdict():
        name = f"{place}.{found['field']}"
        renamed = RENAMED.get(name[1:]) if cls is InferenceServiceSpec else None
        hint = f"it is {path}.{renamed} now" if renamed else nearest(found["field"], _names_at(cls, place))
        return words.format(path=f"{path}{name}", hint=hint)
    known = ", ".join(_kind_at(cls, place)) if "{known}" in words else ""
    groups = (_as_published(group) for group in found.groups())
    return words.format(*groups, path=f"{path}{place}", known=known) + _found(value, place)


def _as_published(group: str | None) -> str:
    """Return a pattern, which msgspec says as Python would write it, as API servers say it; other words as they are."""
    return (group or "").replace("\\\\", "\\").replace(r"\Z", "$")


def nearest(name: str, known: Collection[str]) -> str:
    """Return a sentence with what a name was probably meant to be, or with all that there are."""
    lowered = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), lowered, n=1)
    return f"did you mean {lowered[near[0]]}?" if near else f"known are {', '.join(sorted(known))}"


def _keyed(cls: type[Struct], value: Any, place: str) -> str:
    """Return a place with the key of each entry of an object, which msgspec leaves out."""
    while "[...]" in place:
        before, _, after = place.partition("[...]")
        arguments, entries = typing.get_args(_kind_at(cls, before)), _value_at(value, before)
        if len(arguments) != 2 or not isinstance(entries, dict):
            return place
        culprit = next((key for key, entry in entries.items() if not _fits(arguments[1], entry)), "*")
        place = f"{before}.{culprit}{after}"
    return place


def _fits(hint: Any, value: Any) -> bool:
    try:
        msgspec.convert(value, hint, dec_hook=decode_text)
    except msgspec.ValidationError:
        return False
    return True


def _names_at(cls: type[Struct], place: str) -> list[str]:
    struct = _struct(_kind_at(cls, place))
    return [each.name for each in fields_of(struct)] if struct else []


def _kind_at(kind: Any, place: str) -> Any:
    """Return the type that is declared at a place."""
    for step in _STEPS.finditer(place):
        if not step["name"]:
            kind = without_annotations(element_of(kind))
            continue
        struct, arguments = _struct(kind), typing.get_args(without_annotations(kind))
        if struct is None:
            kind = without_annotations(arguments[1]) if len(arguments) == 2 else None  # an entry of an object
        else:
            kind = next((each.kind for each in fields_of(struct) if each.name == step["name"]), None)
    return kind


def _struct(kind: Any) -> type[Struct] | None:
    return kind if isinstance(kind, type) and issubclass(kind, Struct) else None


def _found(value: Any, place: str) -> str:
    found = _value_at(value, place)
    return "" if found is None or isinstance(found, dict | list) else f", not {redacted(repr(found)):.200}"


def _value_at(value: Any, place: str) -> Any:
    """Return what stands at a place; None where a key of somebody else's makes it ambiguous."""
    for step in _STEPS.finditer(place):
        key = step["name"] or int(step["index"])
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value
