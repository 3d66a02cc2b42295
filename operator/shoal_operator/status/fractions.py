"""Names of the fields whose values are fractions where Kubernetes requires integers.

Kubernetes rejects such a spec without naming the field.
"""

from collections.abc import Iterator
from typing import Any

from shoal_operator.children.observation import dig
from shoal_schema.fields.declaring import Json

_REFUSED = "cannot convert float64 to int"


def named_fractions(message: str, spec: Json) -> str:
    """Append the affected fields to a message that rejects fractions.

    Args:
        message: about an object that was derived from the spec.
        spec: spec of the ``InferenceService``, as the user wrote it.
    """
    if _REFUSED not in message:
        return message
    # Only spec.pod is passed through to Kubernetes unchecked.
    found = [f"{path} is {value}" for path, value in _fractions(dig(spec, "pod"), "spec.pod")]
    return f"{message}. Kubernetes accepts whole numbers only: {', '.join(found)}" if found else message


def _fractions(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not value.is_integer():
        yield path, value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _fractions(inner, f"{path}.{name}")
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _fractions(inner, f"{path}[{index}]")
