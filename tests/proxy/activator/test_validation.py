"""Validation of a table: an invalid entry affects its own service only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.activator.validation import is_pod, validate_services
from shoal_schema.interfaces.activator import ActivatorService


@pytest.mark.parametrize("address", ["10.0.0.1:80", "127.0.0.1:65535", "[fd00::1]:8080"])
def test_a_pod_has_an_address_and_a_port(address: str) -> None:
    assert is_pod(address)


@pytest.mark.parametrize(
    "address",
    [
        "", "a", "a:b:c", "nohost:80", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:080", "fd00::1:80",
        "/x@10.0.0.1:80", "http://10.0.0.1:80", "10.0.0.1:80/",
        "0.0.0.0:80", ":80", "[::]:80", "169.254.169.254:80", "[fe80::1%eth0]:80",
        "[::ffff:169.254.169.254]:80", "224.0.0.1:80", "unix:/run/a",
    ],
)  # fmt: skip
def test_other_addresses_are_no_pods(address: str) -> None:
    assert not is_pod(address)


names, ports = st.sampled_from(["d/a", "d/b", "d/c", "d/e"]), st.integers(1, 4)
addresses = st.sampled_from(["10.0.0.1:80", "nohost", "10.0.0.2:80"])
services = st.builds(ActivatorService, names, ports, st.lists(addresses).map(tuple))


@given(st.lists(services), st.dictionaries(ports, names), st.integers(1, 5))
def test_each_name_and_port_is_served_once_and_open_ports_are_kept(
    table: list[ActivatorService], known: dict[int, str], most: int
) -> None:
    accepted, refused = validate_services(table, known, most)

    assert len(accepted) <= most
    assert len({each.name for each in accepted}) == len({each.port for each in accepted}) == len(accepted)
    assert {each.name for each in accepted} | refused.keys() == {each.name for each in table}
    assert "nohost" not in {address for each in accepted for address in each.addresses}
    served = {each.port: each.name for each in accepted}
    kept = {each.port: each.name for each in table if known.get(each.port) == each.name}
    if len({*kept.values()}) == len(kept) <= most:
        assert kept.items() <= served.items()
