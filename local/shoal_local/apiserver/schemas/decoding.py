"""Decodes JSON as the Go types of built-in kinds do.

Nulls and unknown fields are dropped, quantities become canonical, values of the wrong type are rejected with the
message of Go's decoder.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from shoal_local.apiserver.errors import Cause, bad_request, required_value
from shoal_local.apiserver.schemas.node import Node, path_text, places
from shoal_schema.fields.quantities import BINARY_POWERS, DECIMAL_POWERS, exact_quantity


def canonical_quantity(value: str | int | float) -> str:
    """Return a quantity as a whole number with the largest fitting suffix.

    Raises ValueError: the value is not a quantity.
    """
    text = str(value)
    number = exact_quantity(text)
    if number == 0:
        return "0"
    # A fraction of a binary unit is stored in decimal units.
    binary = text.endswith("i") and number == int(number)
    base, powers = (1024, BINARY_POWERS) if binary else (10, DECIMAL_POWERS)
    for suffix, power in reversed(powers.items()):
        if number % (size := Decimal(base) ** power) == 0:
            return f"{int(number / size)}{suffix}"
    # Smaller than a nano unit: rounded up, as Kubernetes does.
    return str(int(number)) if binary else f"{int(number.scaleb(9)) + 1}n"


_NO_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


def decoded(value: Any, node: Node | None, kind: str = "", path: str = "") -> Any:
    """Return a JSON value as its Go type would decode it.

    ``kind``: name of the enclosing Go type, for messages.
    ``path``: dotted fields from the root, for messages.

    Raises:
        ApiError: 400, a value has the wrong type or is not a quantity.
    """
    if node is None:
        return value
    kind = node.reference.rpartition(".")[2] or kind
    if node.reference == QUANTITY:
        try:
            return canonical_quantity(value)
        except ValueError:
            raise bad_request(_NO_QUANTITY) from None
    _check_type(value, node, kind, path)
    if isinstance(value, dict):
        return {
            key: decoded(inner, node.child(key), kind, f"{path}.{key}" if path else key)
            for key, inner in value.items()
            if inner is not None and (node.open or node.child(key))
        }
    if isinstance(value, list):
        return [decoded(inner, node.item, kind, path) for inner in value]
    return value


def _check_type(value: Any, node: Node, kind: str, path: str) -> None:
    wanted = node.type if node.resolved.get("type") else ""
    if not wanted or value is None:
        return
    # In Python a boolean is an integer.
    fits = isinstance(value, _JSON_TYPES[wanted]) and not (isinstance(value, bool) and wanted != "boolean")
    if not fits:
        names = {str: "string", bool: "bool", int: "number", float: "number", list: "array"}
        # The message names the Go type.
        item = node.item.type if node.item else ""
        go_types = {"boolean": "bool", "number": "float64", "object": f"v1.{kind}", "array": f"[]{item}"}
        go_type = node.resolved.get("format", "int32") if wanted == "integer" else go_types.get(wanted, wanted)
        into = f"Go struct field {kind}.{path} of type {go_type}"
        raise bad_request(f"json: cannot unmarshal {names.get(type(value), 'object')} into {into}")


def required_causes(value: Any, node: Node | None, *, inside: str = "") -> Iterator[Cause]:
    """Yield the missing required fields, outside of the status, which controllers write.

    ``inside``: the field of the object that has this value, if it is not the whole object.
    """
    for inner, at, steps in places(value, node, (inside,) if inside else ()):
        if isinstance(inner, dict) and steps[:1] != ["status"]:
            for name in at.resolved.get("required") or ():
                if name not in inner:
                    yield required_value(path_text([*steps, name]))
