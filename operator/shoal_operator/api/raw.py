"""Whether what is passed through to Kubernetes has the shape that its OpenAPI schema asks for.

The API server has checked it already, by the schema of that day; the manifests are made by this one's. Only the words
of OpenAPI that ``passthrough`` uses are known here.
"""

from typing import Any

from shoal_operator.api.fields import Json
from shoal_operator.api.quantities import LARGEST, parse_quantity

_TYPES: dict[str, type] = {"object": dict, "array": list, "string": str, "integer": int}


class ShapeError(ValueError):
    """A value of another shape; the message names the field, what is allowed, and what it is."""


def check_shape(schema: Json, value: Any, path: str) -> None:
    """Compare a value with its schema.

    Raises:
        ShapeError: it does not fit.
    """
    if "x-kubernetes-int-or-string" in schema:
        _check_quantity(value, path)
        return
    wanted = schema["type"]
    if not _is(value, wanted):
        raise ShapeError(f"{path} must be of type {wanted}, not {value!r}")
    if wanted == "object":
        _check_object(schema, value, path)
    elif wanted == "array":
        _check_list(schema, value, path)
    elif wanted == "integer":
        _check_integer(schema, value, path)
    elif len(value) > schema.get("maxLength", len(value)):
        raise ShapeError(f"{path} must have at most {schema['maxLength']} characters")


def _is(value: Any, wanted: str) -> bool:
    return type(value) is _TYPES[wanted]  # a bool is an int to isinstance


def _check_object(schema: Json, value: Json, path: str) -> None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    if len(value) > schema.get("maxProperties", len(value)):
        raise ShapeError(f"{path} must have at most {schema['maxProperties']} entries")
    for name in schema.get("required", ()):
        if value.get(name) is None:
            raise ShapeError(f"{path}.{name} is required")
    for name, inner in value.items():
        inner_schema = known.get(name, others)
        if inner_schema is not None and (inner is not None or name not in known):
            check_shape(inner_schema, inner, f"{path}.{name}")


def _check_list(schema: Json, value: list[Any], path: str) -> None:
    low, high = schema.get("minItems", 0), schema.get("maxItems", len(value))
    if not low <= len(value) <= high:
        raise ShapeError(f"{path} must have {low} to {high} items, not {len(value)}")
    for index, item in enumerate(value):
        check_shape(schema["items"], item, f"{path}[{index}]")


def _check_integer(schema: Json, value: int, path: str) -> None:
    low, high = schema.get("minimum", -LARGEST - 1), schema.get("maximum", LARGEST)
    if not low <= value <= high:
        raise ShapeError(f"{path} must be {low} to {high}, not {value}")


def _check_quantity(value: Any, path: str) -> None:
    try:
        if type(value) not in (int, str):
            raise ValueError("no quantity")
        parse_quantity(value)
    except ValueError as error:
        allowed = f"like 500m, 2 or 1Gi, of at most {LARGEST}"
        raise ShapeError(f"{path} is {error}: it must be a string or an integer {allowed}, not {value!r}") from None
