r"""Reads the protobuf bodies of typed Go clients: `kubectl run`, `kubectl create`, leader election, events.

A body is ``k8s\0`` and a ``runtime.Unknown``, which names the kind and contains the message. Types come from the
OpenAPI definitions, field numbers from ``field_numbers.yaml``.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from shoal_local.apiserver.errors import unsupported_media_type
from shoal_local.apiserver.schemas.node import Node

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\0"
NUMBERED = "x-protobuf-fields"
"""Names the key of a definition that lists its fields by number."""
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_JSON = ("application/json", "application/yaml")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_protobuf(body: bytes, definition: str, definitions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the object in a protobuf body, in its JSON form.

    ``definition``: the expected kind; a body of kind DeleteOptions is accepted too. Raises ApiError: 415, the field
    numbers of the kind are unknown. Raises ValueError: the body is malformed.
    """
    if not body.startswith(MAGIC):
        raise ValueError("a protobuf body must start with k8s and a zero byte")
    # Field 1 names version and kind, field 2 is the message.
    outer = dict(_fields(body[len(MAGIC) :]))
    head = {number: bytes(value).decode() for number, value in _fields(outer.get(1, b""))}
    kind = head.get(2, "")
    if kind == "DeleteOptions":
        definition = f"{_META}DeleteOptions"
    node = Node({"$ref": f"#/$defs/{definition}"}, definitions)
    return {"apiVersion": head.get(1, ""), "kind": kind, **_message(outer.get(2, b""), node)}


def _message(data: bytes, node: Node) -> dict[str, Any]:
    found = _read(data, node, node.resolved)
    return {name: value for name, value in found.items() if value not in ("", None)}


def _read(data: bytes, node: Node, message: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    names = message.get(NUMBERED, "").split()
    for number, raw in _fields(data):
        name = names[number - 1] if number <= len(names) else "-"
        if name.startswith("&"):
            found |= _read(raw, node, node.definitions[name[1:]])
            continue
        child = node.child(name.rstrip("?"))
        if child is None:
            # A field, or a whole kind, that is not in the table.
            raise unsupported_media_type(_JSON)
        name = name.rstrip("?") if raw or not name.endswith("?") else ""
        values = child.resolved.get("additionalProperties")
        if not name:
            # Zero, which JSON leaves out.
            continue
        if child.item is not None:
            found.setdefault(name, []).append(_value(raw, child.item))
        elif isinstance(values, Mapping):
            # A map is a list of entries: key in field 1, value in field 2.
            entry = dict(_fields(raw))
            inner = _value(entry.get(2, b""), Node(values, child.definitions))
            found.setdefault(name, {})[bytes(entry.get(1, b"")).decode()] = inner
        else:
            found[name] = _value(raw, child)
    return found


def _value(raw: Any, node: Node) -> Any:
    if node.reference in (f"{_META}Time", f"{_META}MicroTime"):
        # Seconds in field 1, nanoseconds in field 2.
        parts = dict(_fields(raw))
        if not parts:
            return None
        moment = _EPOCH + timedelta(seconds=parts.get(1, 0), microseconds=parts.get(2, 0) // 1000)
        return moment.strftime(
            "%Y-%m-%dT%H:%M:%S.%fZ" if node.reference.endswith("MicroTime") else "%Y-%m-%dT%H:%M:%SZ"
        )
    if node.reference in _WRAPPED:
        return _WRAPPED[node.reference](dict(_fields(raw)))
    if node.type == "boolean":
        return bool(raw)
    if node.type == "integer":
        return _signed(raw)
    if node.type == "string":
        byte = node.resolved.get("format") == "byte"
        return base64.b64encode(raw).decode() if byte else bytes(raw).decode()
    return _message(raw, node)


def _signed(number: int) -> int:
    # Varints are unsigned; negative numbers are their two's complement.
    return number - 2**64 if number >= 2**63 else number


_WRAPPED: Mapping[str, Callable[[Mapping[int, Any]], Any]] = {
    f"{_META}FieldsV1": lambda parts: orjson.loads(parts.get(1, b"{}")),
    "io.k8s.apimachinery.pkg.api.resource.Quantity": lambda parts: bytes(parts.get(1, b"")).decode(),
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": lambda parts: (
        bytes(parts.get(3, b"")).decode() if parts.get(1) else _signed(parts.get(2, 0))
    ),
}
"""Messages that are one value in JSON."""


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and raw value of each field: an int or bytes. Raises ValueError: the message is malformed."""
    try:
        fields = UnknownFieldSet(Empty.FromString(data))
    except DecodeError as error:
        raise ValueError(str(error)) from None
    yield from ((field.field_number, field.data) for field in fields)
