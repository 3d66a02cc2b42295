from collections.abc import Mapping
from typing import Any

import pytest

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.schemas.protobuf import MAGIC, NUMBERED, read_protobuf

CONFIG_MAP = "io.k8s.api.core.v1.ConfigMap"


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def body(kind: bytes, message: bytes) -> bytes:
    return MAGIC + field(1, field(1, b"v1") + field(2, kind)) + field(2, message)


def test_a_message_is_read_by_the_names_of_its_numbers(definitions: Mapping[str, Any]) -> None:
    created = field(8, bytes([1 << 3, 60]))
    finalizers = field(14, b"x") + field(14, b"y")
    meta = field(1, b"a") + field(2, b"") + bytes([7 << 3, 5]) + created + finalizers
    data = field(2, field(1, b"k") + field(2, b"v"))
    message = field(1, meta) + data + field(3, field(1, b"b") + field(2, b"\xff"))

    assert read_protobuf(body(b"ConfigMap", message), CONFIG_MAP, definitions) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "a",
            "generation": 5,
            "creationTimestamp": "1970-01-01T00:01:00Z",
            "finalizers": ["x", "y"],
        },
        "data": {"k": "v"},
        "binaryData": {"b": "/w=="},
    }


def test_a_field_of_an_unknown_number_asks_for_json(definitions: Mapping[str, Any]) -> None:
    with pytest.raises(ApiError) as raised:
        read_protobuf(body(b"ConfigMap", field(9, b"x")), CONFIG_MAP, definitions)
    assert raised.value.code == 415


def test_a_kind_without_numbers_asks_for_json(definitions: Mapping[str, Any]) -> None:
    with pytest.raises(ApiError) as raised:
        read_protobuf(body(b"CronJob", field(1, b"")), "io.k8s.api.batch.v1.CronJob", definitions)
    assert raised.value.code == 415


def test_a_zero_is_left_out_where_it_says_as_much_as_none(definitions: Mapping[str, Any]) -> None:
    deployment = "io.k8s.api.apps.v1.Deployment"
    replicas, min_ready_seconds = bytes([1 << 3, 0]), bytes([5 << 3, 0])

    read = read_protobuf(body(b"Deployment", field(2, replicas + min_ready_seconds)), deployment, definitions)

    assert read["spec"] == {"replicas": 0}


def test_messages_within_messages_are_read_as_json_writes_them(definitions: Mapping[str, Any]) -> None:
    service = "io.k8s.api.core.v1.Service"
    named = field(1, b"") + field(4, bytes([1 << 3, 1]) + field(3, b"http"))
    numbered = field(4, bytes([1 << 3, 0, 2 << 3, 80]))
    read = read_protobuf(body(b"Service", field(2, field(1, named) + field(1, numbered))), service, definitions)
    assert read["spec"] == {"ports": [{"targetPort": "http"}, {"targetPort": 80}]}


def test_every_listed_name_is_in_the_definition(definitions: Mapping[str, Any]) -> None:
    for name, definition in definitions.items():
        plain = {field.rstrip("?") for field in definition.get(NUMBERED, "").split() if field[0] not in "-&"}
        # A message that JSON inlines has no definition of its own.
        assert set(definition) == {NUMBERED} or plain <= set(definition.get("properties", {})), name
