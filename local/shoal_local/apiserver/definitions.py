"""Reads the OpenAPI definitions of the built-in kinds from the package that carries them."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import orjson

_PATH = "kubernetes-json-schema/v1.37.0-local/_definitions.json"


def load_definitions() -> Mapping[str, Mapping[str, Any]]:
    """Return the definitions of Kubernetes 1.37 by name."""
    text = files("kubernetes_validate").joinpath(_PATH).read_bytes()
    definitions: Mapping[str, Mapping[str, Any]] = orjson.loads(text)["$defs"]
    return definitions
