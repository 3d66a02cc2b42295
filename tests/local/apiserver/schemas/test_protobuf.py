from collections.abc import Mapping
from typing import Any

import pytest

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.schemas.protobuf import MAGIC, field_names, read_protobuf

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
    with pytest.raises(ApiError) as told:
        read_protobuf(body(b"ConfigMap", field(9, b"x")), CONFIG_MAP, definitions)
    assert told.value.code == 415


def test_a_kind_without_numbers_asks_for_json(definitions: Mapping[str, Any]) -> None:
    with pytest.raises(ApiError) as told:
        read_protobuf(body(b"Pod", field(1, b"")), "io.k8s.api.core.v1.Pod", definitions)
    assert told.value.code == 415


def test_every_listed_name_is_in_the_definition(definitions: Mapping[str, Any]) -> None:
    for short, names in field_names().items():
        known = next(d for key, d in definitions.items() if key.endswith(f".{short}"))
        assert names <= set(known["properties"]), short
