"""Addresses of models: what every one of the pod's programs can read, and nothing else."""

import ipaddress
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from shoal_schema.decoding import SpecError, parse_spec
from shoal_schema.fields.declaring import Json, Process
from shoal_schema.process.environment import SettingsError, read
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.uris import has_good_authority
from tests.operator.samples import BY_KEDA, EVERYTHING, service, with_fields


class _Model(Struct, frozen=True):
    model: ModelSpec


GROUPS = st.lists(st.sampled_from(["", "0", "1", "ffff", "12345", "g", "1.2.3.4", "256.1.1.1", "01.2.3.4"]), max_size=9)


@given(st.one_of(GROUPS.map(":".join), st.ip_addresses(v=6).map(str)))
@example("::")
@example("1::2::3")
@example("::ffff:1.2.3.4")
@example("1:2:3:4:5:6:7::")
def test_an_ipv6_host_is_one_that_python_reads_too(host: str) -> None:
    try:
        ipaddress.IPv6Address(host)
        good = True
    except ValueError:
        good = False

    assert has_good_authority(f"http://[{host}]:80/cat") is good


@pytest.mark.parametrize(
    "uri",
    [
        "file:///models/my cat",
        "https://models.example.com/cat.pt2?v=1#top",
        "http://[::1]:8000/cat",
        "http://[fe80::1%25eth0]/cat",
        "https://user:word@10.0.0.1:65535",
        "http://cat/\u00e9",
    ],
)
def test_a_reachable_address_is_accepted(uri: str) -> None:
    assert parse_spec(service({"model": {"uri": uri}})).model.uri == uri


@pytest.mark.parametrize(
    "uri",
    [
        "https:///cat",
        "http://[::1/cat",
        "http://[zz]/cat",
        "http://::1/cat",
        "http://h:65536/",
        "http://u@/cat",
        "file://[a/b",
    ],
)
def test_a_url_without_a_valid_host_is_rejected(uri: str) -> None:
    with pytest.raises(SpecError, match=r"spec\.model\.uri: .* must have a host"):
        parse_spec(service({"model": {"uri": uri}}))
    with pytest.raises(SettingsError, match=r"SHOAL_MODEL_URI: .* must have a host"):
        read(_Model, {"SHOAL_MODEL_URI": uri}, Process.RUNTIME)


@pytest.mark.parametrize("user", ["me:s3cret@", "s3cret@"])
@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (
            with_fields(BY_KEDA, scaling__external__scaledObject__serverAddress="http://USER@prometheus:9090"),
            "serverAddress",
        ),
        (with_fields(EVERYTHING, access__jwt__jwksUrl="https://USER@issuer.example.com/keys"), "jwksUrl"),
    ],
)
def test_credentials_in_urls_of_servers_are_rejected(spec: Json, path: str, user: str) -> None:
    def given(credentials: str) -> Json:
        return service(json.loads(json.dumps(spec).replace("USER@", credentials)))

    parse_spec(given(""))
    with pytest.raises(SpecError, match=path) as error:
        parse_spec(given(user))
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("character", ["\0", "\n", "\r", "\t", "\x7f"])
@pytest.mark.parametrize("where", ["file:///a{}b", "file:///a{}", "https://a{}b/c", "https://a/{}"])
def test_control_characters_in_a_uri_are_rejected(character: str, where: str) -> None:
    with pytest.raises(SpecError, match=r"spec\.model\.uri must match"):
        parse_spec(service({"model": {"uri": where.format(character)}}))
