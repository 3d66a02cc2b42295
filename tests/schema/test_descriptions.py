"""`kubectl explain`: each field of each definition has a description."""

import re
from collections.abc import Iterator

import pytest

from shoal_schema.fields.declaring import Json
from shoal_schema.publishing.batch import batches
from shoal_schema.publishing.crd import Definition, custom_resource_definition, services
from shoal_schema.publishing.graph import graphs

LONGEST = 450
"""Characters; `kubectl explain` wraps them to 6 lines."""


def fields(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield the fields below a schema, also those in elements and values; metadata is the API server's own."""
    for name, part in schema.get("properties", {}).items():
        if (path, name) != ("", "metadata"):
            yield f"{path}.{name}", part
            yield from fields(part, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from fields(schema[word], f"{path}[]")


@pytest.mark.parametrize("definition", [services(), graphs(), batches()], ids=lambda each: each.kind)
def test_each_field_is_described_in_whole_sentences(definition: Definition) -> None:
    root = custom_resource_definition(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    described = {path: schema.get("description", "") for path, schema in fields(root)}

    assert len(described) > 100
    assert {path: text for path, text in described.items() if not re.match(r"[A-Z`].*\.$", text)} == {}
    assert {path: text for path, text in described.items() if len(text.split()) < 4} == {}
    assert {path: text for path, text in described.items() if len(text) > LONGEST} == {}
    assert {path: text for path, text in described.items() if text.startswith("As in a")} == {}


@pytest.mark.parametrize("definition", [services(), graphs(), batches()], ids=lambda each: each.kind)
def test_metadata_has_no_description_as_api_servers_reject_one(definition: Definition) -> None:
    root = custom_resource_definition(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    assert root["properties"]["metadata"].keys() == {"type", "properties"}
