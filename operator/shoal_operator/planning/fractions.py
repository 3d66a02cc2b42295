"""Which field it is that Kubernetes refuses for its fraction: its own words name types, and no field."""

from collections.abc import Iterator
from typing import Any

from shoal_operator.planning.observation import dig
from shoal_schema.declaring import Json

_REFUSED = "cannot convert float64 to int"


def named_fractions(message: str, spec: Json) -> str:
    """Return an API server's refusal with the fields that it means; any other message as it is.

    Args:
        message: the refusal of an object that was made of the spec.
        spec: an ``InferenceService``'s, as it was written.
    """
    if _REFUSED not in message:
        return message
    found = [f"{path} is {value}" for path, value in _fractions(dig(spec, "pod"), "spec.pod")]
    return f"{message}. Kubernetes takes whole numbers only, and {', '.join(found)}" if found else message


def _fractions(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not value.is_integer():
        yield path, value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _fractions(inner, f"{path}.{name}")
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _fractions(inner, f"{path}[{index}]")
