"""What waiting rooms are told: stable ports, and a version for each change."""

import pytest

from shoal_operator.planning.observation import Key
from shoal_operator.planning.rooms import Book, allot, stored_port
from shoal_schema.decoding import SpecError
from shoal_schema.waiting import RoomService, decode_table, encode
from tests.operator.samples import service

CAT, DOG, EMU = (Key("default", name) for name in ("cat", "dog", "emu"))
PORTS = range(20000, 20002)


def test_a_service_keeps_its_port_and_gets_the_one_that_it_had() -> None:
    assert allot(CAT, None, {}, PORTS) == 20000
    assert allot(CAT, 20001, {}, PORTS) == 20001
    assert allot(CAT, None, {CAT: 20001}, PORTS) == 20001


@pytest.mark.parametrize("wanted", [20000, 19999, 30000, None])
def test_a_port_of_another_or_of_another_range_is_not_given(wanted: int | None) -> None:
    assert allot(CAT, wanted, {DOG: 20000}, PORTS) == 20001


def test_where_all_ports_are_taken_the_service_is_told() -> None:
    with pytest.raises(SpecError, match="all 2 ports of the waiting room are taken"):
        allot(CAT, None, {DOG: 20000, EMU: 20001}, PORTS)


@pytest.mark.parametrize("status", [{}, {"waitingRoom": {}}, {"waitingRoom": {"port": "x"}}, {"waitingRoom": 7}])
def test_a_status_without_a_port_has_none(status: dict[str, object]) -> None:
    assert stored_port({**service(), "status": status}) is None
    assert stored_port({**service(), "status": {"waitingRoom": {"port": 20001}}}) == 20001


def test_each_change_is_a_new_version_and_no_change_is_none() -> None:
    book = Book("e")
    one = RoomService("default/cat", 20000)

    assert book.put(CAT, one)
    assert not book.put(CAT, RoomService("default/cat", 20000))
    assert book.put(CAT, RoomService("default/cat", 20000, addresses=("10.0.0.1:8080",)))
    assert book.drop(CAT)
    assert not book.drop(CAT)
    assert book.mark == "e:3"


def test_rooms_read_what_is_written_and_a_version_of_another_book_is_none() -> None:
    book = Book("e")
    book.put(DOG, RoomService("default/dog", 20001, start_s=9.5))
    book.put(CAT, RoomService("default/cat", 20000, addresses=("[fd00::1]:8080",)))

    assert decode_table(encode(book.table())) == book.table()
    assert [each.name for each in book.table().services] == ["default/cat", "default/dog"]
    assert [book.read_version(mark) for mark in ("e:2", "f:2", "", "e:", "e:x", "e:-1")] == [2, -1, -1, -1, -1, -1]
