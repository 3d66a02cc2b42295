"""Ports of the activator: one for each service, stable, never another's, and at rest before the next one's."""

import pytest

from shoal_operator.children.observation import Key
from shoal_operator.zero.activator import NoActivatorError
from shoal_operator.zero.ports import REST_S, Ports, port_range, stored_port
from tests.operator.samples import service

CAT, DOG = (Key("default", name) for name in ("cat", "dog"))


def two() -> Ports:
    return Ports(port_range(20000, 2))


def test_a_service_gets_its_former_port_or_the_first_free_one() -> None:
    assert two().choose(CAT, (None, 20001), (), 0.0) == 20001
    assert two().choose(CAT, (20000, 20001), (), 0.0) == 20000
    assert two().choose(CAT, (None, None), (), 0.0) == 20000


@pytest.mark.parametrize("preferred", [20000, 19999, 30000, 9090, 1, -1, None])
def test_a_taken_port_or_one_of_another_range_is_not_assigned(preferred: int | None) -> None:
    assert two().choose(CAT, (preferred,), {20000}, 0.0) == 20001


def test_activators_own_port_and_invalid_ports_are_not_assigned() -> None:
    assert 9090 not in port_range(9000, 200)
    assert max(port_range(65000, 60000)) == 65535


def test_service_without_a_free_port_is_reported() -> None:
    with pytest.raises(NoActivatorError, match="all 2 ports of the activator are in use"):
        two().choose(CAT, (), {20000, 20001}, 0.0)


def test_freed_port_is_assigned_to_another_service_after_a_rest_and_to_the_same_at_once() -> None:
    ports = two()
    ports.free(DOG, 20000, 10.0)
    assert ports.next_free_s(10.0) == 10.0 + REST_S
    with pytest.raises(NoActivatorError):
        ports.choose(CAT, (20000,), {20001}, 9.0 + REST_S)
    assert ports.choose(DOG, (20000,), {20001}, 9.0 + REST_S) == 20000
    assert ports.choose(CAT, (20000,), {20001}, 10.0 + REST_S) == 20000
    assert ports.next_free_s(10.0 + REST_S) is None


@pytest.mark.parametrize("status", [{}, {"activator": {}}, {"activator": {"port": "x"}}, {"activator": 7}])
def test_a_status_without_a_port_has_none(status: dict[str, object]) -> None:
    assert stored_port({**service(), "status": status}) is None
    assert stored_port({**service(), "status": {"activator": {"port": 20001}}}) == 20001
