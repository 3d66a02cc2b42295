"""Spec fields -> environment variables of a container (docs/contracts.md section 3)."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from shoal_operator.api.fields import FieldView, Json, fields_of
from shoal_operator.api.model import InferenceServiceSpec

SOCKET_DIR = "/run/shoal"
SOCKET = f"unix:{SOCKET_DIR}/runtime.sock"
CACHE_DIR = "/var/cache/shoal"
HTTP_PORT = 8080
ADMIN_PORT = 9090


def variable(name: str, value: str) -> Json:
    """Return one entry of a container's ``env``."""
    return {"name": name, "value": value}


def spec_variables(spec: InferenceServiceSpec, container: str) -> list[Json]:
    """Return the variables that the spec's fields give to a container, in the spec's order.

    Kubernetes replaces ``$(NAME)`` in a value, and ``$$`` by ``$``; doubled, each ``$`` arrives as it was written.
    """
    return [variable(name, text.replace("$", "$$")) for name, text in _walk(spec, container)]


def _walk(part: Any, container: str) -> Iterator[tuple[str, str]]:
    for view in fields_of(type(part)):
        value = getattr(part, view.attribute)
        if dataclasses.is_dataclass(value):
            yield from _walk(value, container)
        elif view.schema.env and container in view.schema.containers and _given(value):
            yield view.schema.env, rendered(view, value)


def _given(value: Any) -> bool:
    return value is not None and value != ()


def rendered(view: FieldView, value: Any) -> str:
    """Return a field's value as the text of its variable."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    if isinstance(value, tuple):
        items = sorted(value) if view.schema.is_set else value
        return ",".join(str(item) for item in items)
    return str(value).lower() if view.schema.lower else str(value)
