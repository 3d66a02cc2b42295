"""Decoding of JSON into sections, with errors that name the field, the allowed values and the value found.

The API server validates specs and fills in defaults, but the operator does not rely on that: an object may be older
than the schema.
"""

import json
import re
import typing
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from shoal_schema.expressions.grammar import ExpressionError, parse
from shoal_schema.fields.addresses import Address, TcpAddress, parse_address, parse_tcp_address
from shoal_schema.fields.declaring import Json, as_json, element_of, fields_of, section_of, without_annotations
from shoal_schema.fields.quantities import Quantity, read_quantity
from shoal_schema.fields.redaction import redacted_value
from shoal_schema.fields.rules import broken, broken_among
from shoal_schema.graphs.errors import GraphError
from shoal_schema.graphs.plan import make_plan
from shoal_schema.resource.graph import InferenceGraphSpec
from shoal_schema.resource.offline import BATCH_RULES, BatchInferenceSpec
from shoal_schema.resource.service import RENAMED, InferenceServiceSpec

T = TypeVar("T", bound=Struct)
MAX_GRAPH_BYTES = 100_000
"""Limit of a graph as JSON: a variable holds at most 131,072 bytes, and names of services become URLs in it."""
_STEPS = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")
_WORDS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        # A required name, and a name that does not exist.
        (r"Object missing required field `(?P<field>.*)`", "{path} is required"),
        (r"Object contains unknown field `(?P<field>.*)`", "there is no field {path}; {hint}"),
        (
            r"Expected `str`(?:, got `\w+`)? - at `key` in `\$(.*)`",
            "{path}{0}: every name must be of type str; quote one that YAML reads as something else, as on, no and 1",
        ),
        # Types and choices.
        (r"Expected `(\w+)(?: \| null)?`, got `.*`", "{path} must be of type {0}"),
        (r"Invalid enum value .*", "{path} must be one of {known}"),
        # Bounds of numbers.
        (r"Expected `\w+` >= (.*)", "{path} must be at least {0}"),
        (r"Expected `\w+` > (.*)", "{path} must be more than {0}"),
        (r"Expected `\w+` <= (.*)", "{path} must be at most {0}"),
        # Bounds of lengths.
        (r"Expected `str` of length <= (.*)", "{path} must have at most {0} characters"),
        (r"Expected `\w+` of length <= (.*)", "{path} must have at most {0} items"),
        (r"Expected `\w+` of length >= (.*)", "{path} must have at least {0} items"),
        # Patterns and quantities.
        (r"Expected `str` matching regex ['\"](.*)['\"]", "{path} must match {0}"),
        (r"(is not a quantity.*|is a quantity.*)", "{path} {0}"),
    )
)
"""Errors of msgspec -> errors with a path."""


class SpecError(ValueError):
    """Error of an invalid spec; the message names the field, the allowed values and the value found."""


def parse_spec(resource: Json) -> InferenceServiceSpec:
    """Return the typed spec of an ``InferenceService``.

    Rules between fields are not checked, except those of the model's location: an object may be older than a rule,
    and its pods must still be reconciled. `broken_rules` checks all rules.

    Raises:
        SpecError: a field is missing, of the wrong type, or out of range.
    """
    spec = convert(InferenceServiceSpec, resource.get("spec", {}), "spec")
    if faults := broken_rules(spec.model, "spec.model"):
        raise SpecError("; ".join(faults))
    return spec


def parse_batch_spec(resource: Json) -> BatchInferenceSpec:
    """Return the typed spec of a ``BatchInference``.

    Raises:
        SpecError: a field is missing, of the wrong type, or out of range.
    """
    spec = decode(BatchInferenceSpec, resource.get("spec", {}), "spec")
    for rule in broken_among(BATCH_RULES, resource):
        raise SpecError(f"metadata.name: {rule.message}")
    if spec.input.where is not None:
        try:
            parse(spec.input.where)
        except ExpressionError as error:
            raise SpecError(f"spec.input.where {spec.input.where!r:.200} {error}") from None
    return spec


class GraphSpecError(SpecError):
    """Error of a graph that is invalid regardless of its models; ``fault`` is the reason."""

    def __init__(self, error: GraphError) -> None:
        super().__init__(f"spec.{error}")
        self.fault = error.fault


def parse_graph_spec(resource: Json) -> InferenceGraphSpec:
    """Return the typed spec of an ``InferenceGraph``, validated as far as possible without its models.

    Raises:
        SpecError: a field is missing, of the wrong type, or out of range.
        GraphSpecError: the steps are inconsistent.
    """
    spec = decode(InferenceGraphSpec, resource.get("spec", {}), "spec")
    try:
        # Planning validates references and expressions.
        make_plan(spec, resource["metadata"]["name"])
        # The proxy reads the graph from an environment variable, which has a limit.
        document = json.dumps(as_json(spec.graph(spec.steps)), ensure_ascii=False)
        size_bytes = len(document.encode(errors="surrogatepass"))
        if size_bytes > MAX_GRAPH_BYTES:
            path = "composer.source" if spec.composer and spec.composer.source else "steps"
            raise GraphError(path, f"the graph takes {size_bytes} bytes as JSON, more than {MAX_GRAPH_BYTES}")
    except GraphError as error:
        raise GraphSpecError(error) from None
    return spec


def decode(cls: type[T], value: Any, path: str) -> T:
    """Decode a section from JSON and check its rules; null means absent.

    Raises:
        SpecError: the value is invalid.
    """
    section = convert(cls, value, path)
    if faults := broken_rules(section, path):
        raise SpecError("; ".join(faults))
    return section


def broken_rules(section: Struct, path: str) -> list[str]:
    """Return a message, with path, for each broken rule of a section and its inner sections."""
    return [
        f"{'.'.join(part for part in (path, where, rule.path) if part)}: {rule.message}"
        for where, rule in broken(section)
    ]


def convert(cls: type[T], value: Any, path: str) -> T:
    """Decode a section from JSON without checking its rules.

    Raises:
        SpecError: the value is invalid.
    """
    try:
        # JSON may hold an unpaired surrogate, which is not text; msgspec accepts it in free-form objects.
        json.dumps(value, ensure_ascii=False, default=str).encode()
        return msgspec.convert(_without_nulls(cls, value), cls, dec_hook=decode_text)
    except msgspec.ValidationError as error:
        raise SpecError(_sentence(str(error), cls, value, path)) from None
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{path} must contain only valid Unicode text, not {error.object[error.start : error.start + 100]!r}"
        ) from None


def decode_text(kind: type, value: Any) -> Any:
    """Return a value of a type that JSON does not have (msgspec's ``dec_hook``).

    Raises:
        ValueError: the value does not fit the type.
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
    # Free-form objects keep their nulls: only declared sections are traversed.
    kinds = {each.name: each.kind for each in fields_of(cls)}
    return {name: _part(kinds.get(name), part) for name, part in value.items() if part is not None}


def _part(kind: Any, value: Any) -> Any:
    element = element_of(kind)
    if element is not None and isinstance(value, list):
        return [_part(element, each) for each in value]
    return _without_nulls(section, value) if (section := section_of(kind)) else value


def _sentence(text: str, cls: type[Struct], value: Any, path: str) -> str:
    """Rewrite an error message of msgspec with the field's path and the value found."""
    # msgspec writes "MESSAGE - at `$.path`".
    what, _, place = text.partition(" - at `$")
    place = _keyed(cls, value, place.removesuffix("`"))
    found, words = next(((found, words) for pattern, words in _WORDS if (found := pattern.fullmatch(what))), (None, ""))
    if found is None:
        return f"{path}{place}{what}" if what.startswith(".") else f"{path}{place}: {what}"
    if "field" in found.groupdict():
        name = f"{place}.{found['field']}"
        struct = _struct(_kind_at(cls, place))
        known_names = [each.name for each in fields_of(struct)] if struct else []
        # Older releases had other names for some fields.
        renamed = RENAMED.get(name[1:]) if cls is InferenceServiceSpec else None
        hint = f"it was renamed to {path}.{renamed}" if renamed else nearest(found["field"], known_names)
        return words.format(path=f"{path}{name}", hint=hint)
    known = ", ".join(_kind_at(cls, place)) if "{known}" in words else ""
    # msgspec quotes a pattern as Python source; show it as in the CRD.
    groups = ((group or "").replace("\\\\", "\\").replace(r"\Z", "$") for group in found.groups())
    actual = _value_at(value, place)
    actual = redacted_value(actual) if isinstance(actual, str) else actual
    shown = "" if actual is None or isinstance(actual, dict | list) else f", not {actual!r:.200}"
    return words.format(*groups, path=f"{path}{place}", known=known) + shown


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint with the closest known name, or with all known names."""
    lowered = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), lowered, n=1)
    return f"did you mean {lowered[near[0]]}?" if near else f"known are {', '.join(sorted(known))}"


def _keyed(cls: type[Struct], value: Any, place: str) -> str:
    """Return the path of a msgspec error with the keys of maps filled in.

    msgspec writes each key of a map as ``[...]``.
    """
    # msgspec writes [...] for any key of an object: find the first entry that fails.
    while "[...]" in place:
        before, _, after = place.partition("[...]")
        arguments, entries = typing.get_args(_kind_at(cls, before)), _value_at(value, before)
        if len(arguments) != 2 or not isinstance(entries, dict):
            return place
        culprit = "*"
        for key, entry in entries.items():
            try:
                msgspec.convert(entry, arguments[1], dec_hook=decode_text)
            except msgspec.ValidationError:
                culprit = key
                break
        place = f"{before}.{culprit}{after}"
    return place


def _kind_at(kind: Any, place: str) -> Any:
    """Return the declared type at a path, such as ``.steps[0].name``."""
    for step in _STEPS.finditer(place):
        # An index: continue with the elements' type.
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


def _value_at(value: Any, place: str) -> Any:
    """Return the value at a path, such as ``.steps[0].name``; None if a user's key makes the path ambiguous."""
    for step in _STEPS.finditer(place):
        key = step["name"] or int(step["index"])
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value
