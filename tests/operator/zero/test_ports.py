"""Ports of the activator: one for each service, stable, never another's, and at rest before the next one's."""

import pytest

from shoal_operator.children.observation import Key
from shoal_operator.zero.activator import NoActivatorError
from shoal_operator.zero.ports import REST_S, Ports, port_range, stored_port
from tests.operator.samples import service

CAT, DOG, EMU = (Key("default", name) for name in ("cat", "dog", "emu"))


def two() -> Ports:
    return Ports(port_range(20000, 2))


def test_a_service_keeps_its_port_and_gets_the_one_that_it_had() -> None:
    ports = two()
    assert ports.assign(CAT, 20001, 0.0) == 20001
    assert ports.assign(CAT, 20000, 1.0) == 20001
    assert ports.assign(DOG, None, 1.0) == 20000


@pytest.mark.parametrize("wanted", [20000, 19999, 30000, 9090, 1, -1, None])
def test_a_port_of_another_or_of_another_range_is_not_given(wanted: int | None) -> None:
    ports = two()
    ports.reserve(DOG, 20000)
    assert ports.assign(CAT, wanted, 0.0) == 20001


@pytest.mark.parametrize("port", [19999, 20002, 9090, 1, None])
def test_a_port_of_another_range_is_not_kept_for_who_had_it(port: int | None) -> None:
    ports = two()
    ports.reserve(CAT, port)
    assert not ports.has_unseen
    assert ports.assign(CAT, port, 0.0) == 20000


def test_of_two_whose_status_names_the_same_port_one_gets_another() -> None:
    ports = two()
    ports.reserve(CAT, 20000)
    ports.reserve(DOG, 20000)
    assert {ports.assign(DOG, 20000, 0.0), ports.assign(CAT, 20000, 0.0)} == {20000, 20001}


def test_activators_own_port_and_invalid_ports_are_not_assigned() -> None:
    assert 9090 not in port_range(9000, 200)
    assert max(port_range(65000, 60000)) == 65535


def test_service_without_a_free_port_is_reported() -> None:
    ports = two()
    for key in (DOG, EMU):
        ports.assign(key, None, 0.0)
    with pytest.raises(NoActivatorError, match="all 2 ports of the activator are in use"):
        ports.assign(CAT, None, 0.0)


def test_port_is_reassigned_after_a_rest_and_waiting_services_are_returned() -> None:
    ports = two()
    for key in (DOG, EMU):
        ports.assign(key, None, 0.0)
    with pytest.raises(NoActivatorError):
        ports.assign(CAT, None, 5.0)
    assert ports.free(DOG, 10.0) == {CAT: 10.0 + REST_S}
    with pytest.raises(NoActivatorError):
        ports.assign(CAT, 20000, 9.0 + REST_S)
    assert ports.awaited(9.0 + REST_S) == {CAT: 10.0 + REST_S}
    assert ports.assign(CAT, None, 10.0 + REST_S) == 20000
    assert ports.awaited(10.0 + REST_S) == {}


def test_one_that_is_made_again_under_its_name_has_its_port_at_once() -> None:
    ports = two()
    for key in (DOG, EMU):
        ports.assign(key, None, 0.0)
    ports.free(EMU, 1.0)
    assert ports.assign(EMU, None, 1.0) == 20001


def test_service_without_a_port_frees_none() -> None:
    ports = two()
    assert ports.free(CAT, 0.0) == {}
    assert ports.assign(CAT, None, 0.0) == 20000


@pytest.mark.parametrize("status", [{}, {"activator": {}}, {"activator": {"port": "x"}}, {"activator": 7}])
def test_a_status_without_a_port_has_none(status: dict[str, object]) -> None:
    assert stored_port({**service(), "status": status}) is None
    assert stored_port({**service(), "status": {"activator": {"port": 20001}}}) == 20001
