"""What holds at the very bound, and no more beyond it."""

from typing import Annotated

import pytest
from msgspec import Meta

from shoal_schema.fields.addresses import parse_tcp_address
from shoal_schema.fields.declaring import SettingsSection
from shoal_schema.publishing.openapi import object_schema


def test_the_last_port_is_one() -> None:
    assert parse_tcp_address("a:65535").port == 65535
    with pytest.raises(ValueError, match="is not an address"):
        parse_tcp_address("a:65536")


class Counts(SettingsSection, frozen=True):
    """Counts, up to where the next format begins and beyond."""

    few: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Few.")] = 0
    many: Annotated[int, Meta(ge=0, le=2**31, description="Many.")] = 0
    most: Annotated[int, Meta(ge=0, le=2**63 - 1, description="As many as there are.")] = 0


def test_a_whole_number_is_as_wide_as_its_range_needs() -> None:
    properties = object_schema(Counts)["properties"]

    assert {name: each["format"] for name, each in properties.items()} == {
        "few": "int32",
        "many": "int64",
        "most": "int64",
    }
    assert [each.get("maximum") for each in properties.values()] == [2**31 - 1, 2**31, None]
