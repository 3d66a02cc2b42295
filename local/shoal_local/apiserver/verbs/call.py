"""A parsed request: object, verb, options, user, time and body."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
import yaml

from shoal_local.apiserver.access.rbac import User
from shoal_local.apiserver.errors import bad_request, no_such_path, unsupported_media_type
from shoal_local.apiserver.kinds.registry import Resource
from shoal_local.apiserver.schemas.node import Node, path_text, places
from shoal_local.objects import Object, timestamp

_TRUE = ("true", "True", "1")


@dataclass(frozen=True, slots=True)
class Target:
    """The resource or object of a request path; ``name`` is '' for a list."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One API request."""

    verb: str
    target: Target
    user: User
    now: datetime
    """Time of the request, in UTC."""
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    agent: str = ""
    """The User-Agent header, which names the field manager if the request does not."""

    def flag(self, name: str) -> bool:
        """Return a boolean parameter of the query."""
        return self.query.get(name, "") in _TRUE

    def number(self, name: str) -> float | None:
        """Return a query parameter as a number; None if it is absent. Raises ApiError: 400, it is not a number >= 0."""
        text = self.query.get(name)
        if not text:
            return None
        if not re.fullmatch(r"\d+(\.\d+)?", text):
            raise bad_request(f"{name}: Invalid value: {text!r}: must be a number of at least 0")
        return float(text)

    @property
    def dry_run(self) -> bool:
        """Return whether the request must not change the store."""
        # `All` is the only mode that Kubernetes defines.
        return "All" in self.query.get("dryRun", "")

    @property
    def manager(self) -> str:
        """Return the name of the field manager."""
        return self.query.get("fieldManager") or self.agent.split("/")[0][:128] or "unknown"

    @property
    def timestamp(self) -> str:
        """Return the time of the request in the format of the API."""
        return timestamp(self.now)


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response: HTTP code, body, and warnings for kubectl."""

    body: Object
    code: int = 200
    warnings: tuple[str, ...] = ()


SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
"""Body of the response to a write that returns no object."""


def parse_path(path: str) -> Target:
    """Parse ``/api/v1/...`` or ``/apis/<group>/<version>/...``. Raises ApiError: 404, the path has another form."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        return _below("", parts[1], parts[2:])
    if parts[:1] == ["apis"] and len(parts) >= 4:
        return _below(parts[1], parts[2], parts[3:])
    raise no_such_path()


def _below(group: str, version: str, rest: list[str]) -> Target:
    namespace = ""
    # `namespaces/NAME/status` is a subresource of the namespace, not a collection in it.
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        raise no_such_path()
    plural, name, subresource = (*rest, "", "")[:3]
    return Target(group, version, plural, namespace, name, subresource)


def verb_of(method: str, target: Target, query: Mapping[str, str]) -> str:
    """Return the RBAC verb of a request, such as ``list`` or ``patch``."""
    if method in ("GET", "HEAD"):
        if target.name:
            return "get"
        return "watch" if query.get("watch", "") in _TRUE else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())


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


def unknown_fields(value: Any, node: Node) -> Iterator[str]:
    """Yield the paths of fields that the schema does not declare."""
    for inner, at, steps in places(value, node):
        if isinstance(inner, dict) and not at.open:
            yield from (path_text([*steps, key]) for key in inner if at.child(key) is None)
