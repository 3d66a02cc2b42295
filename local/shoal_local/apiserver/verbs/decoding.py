"""Decoding of request bodies, with the error messages of Kubernetes."""

import contextlib
from collections.abc import Iterator
from typing import Any

import orjson
import yaml

from shoal_local.apiserver.errors import bad_request, unsupported_media_type
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.apiserver.schemas.node import Node
from shoal_local.apiserver.verbs.call import Call
from shoal_local.objects import Object

READABLE = ("application/json", "application/yaml")


def decode(call: Call) -> Any:
    """Parse a JSON or YAML body. Raises ApiError: 400 or 415, the body is not JSON or YAML."""
    kind = call.content_type.split(";")[0].strip()
    try:
        if kind.endswith("json") or not kind:
            return orjson.loads(call.body)
        if kind.endswith("yaml"):
            # kubectl sends JSON as YAML; it is much faster to parse.
            with contextlib.suppress(orjson.JSONDecodeError):
                return orjson.loads(call.body)
            return yaml.safe_load(call.body)
    except (orjson.JSONDecodeError, yaml.YAMLError) as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from None
    raise unsupported_media_type(READABLE)


def decode_object(call: Call, resource: Resource) -> Object:
    """Parse the request's body as an object of its path and kind."""
    obj = decode(call)
    if not isinstance(obj, dict):
        raise bad_request(f"json: cannot unmarshal into Go value of type {resource.kind}")
    return checked(obj, call, resource)


def checked(obj: Object, call: Call, resource: Resource) -> Object:
    """Return the object with kind, apiVersion and namespace from the path.

    Raises ApiError: 400, the object contradicts the path.
    """
    # Both may be missing in a patch's result or a body.
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, **obj}
    if obj["apiVersion"] != resource.api_version:
        message = f"the API version in the data ({obj['apiVersion']}) does not match the expected API version"
        raise bad_request(f"{message} ({resource.api_version})")
    if obj["kind"] != resource.kind:
        raise bad_request(f"{obj['kind']} in version {resource.version!r} cannot be handled as a {resource.kind}")
    meta = obj.get("metadata")
    if meta is not None and not isinstance(meta, dict):
        raise bad_request("json: cannot unmarshal into Go struct field .metadata of type v1.ObjectMeta")
    meta = {k: v for k, v in (meta or {}).items() if v is not None}
    if not resource.namespaced:
        meta.pop("namespace", None)
    elif meta.setdefault("namespace", call.target.namespace) != call.target.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    obj["metadata"] = meta
    return obj


def strict_fields(obj: Object, call: Call, node: Node) -> tuple[str, ...]:
    """Return warnings about fields that the schema does not declare.

    Raises ApiError: 400, a field is unknown and the request has ``fieldValidation=Strict``.
    """
    mode = call.query.get("fieldValidation", "Warn")
    unknown = [] if mode == "Ignore" else [f'unknown field "{path}"' for path in unknown_fields(obj, node)]
    if unknown and mode == "Strict":
        kind, version = obj["kind"], obj["apiVersion"].rpartition("/")[2]
        message = "strict decoding error: " + ", ".join(unknown)
        if call.verb != "patch":
            message = f'{kind} in version "{version}" cannot be handled as a {kind}: {message}'
        raise bad_request(message)
    return tuple(unknown)


def unknown_fields(value: Any, node: Node | None, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that the schema does not declare."""
    if node is None or value is None:
        return
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown_fields(item, node.item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            child = node.child(key)
            if child is not None:
                yield from unknown_fields(inner, child, f"{path}.{key}" if path else key)
            elif not node.open:
                yield f"{path}.{key}" if path else key
