import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_schema.wire.elements import object_array, pack_elements, unpack_elements


@given(st.lists(st.binary(max_size=40)))
def test_elements_survive_packing(elements: list[bytes]) -> None:
    assert unpack_elements(memoryview(pack_elements(elements))) == elements


@given(st.binary(max_size=64))
def test_any_bytes_are_elements_or_a_value_error(raw: bytes) -> None:
    try:
        elements = unpack_elements(memoryview(raw))
    except ValueError:
        return
    assert pack_elements(elements) == raw


def test_a_length_past_the_end_is_rejected_without_allocating_it() -> None:
    raw = struct.pack("<I", 0xFFFFFFFF) + b"abc"

    with pytest.raises(ValueError, match="element 0 has a length of 4294967295"):
        unpack_elements(memoryview(raw))


@pytest.mark.parametrize("second", [b"abc", b""])
def test_the_error_of_a_length_past_the_end_names_the_element(second: bytes) -> None:
    with pytest.raises(ValueError, match="element 1 has a length of 4"):
        unpack_elements(pack_elements([b"xy"]) + struct.pack("<I", 4) + second)


def test_a_truncated_length_is_rejected() -> None:
    with pytest.raises(ValueError, match="2 of 4 bytes"):
        unpack_elements(memoryview(b"\x00\x00"))


def test_sequences_stay_whole_in_an_object_array() -> None:
    array = object_array([[1, 2], [3, 4]], (2,))

    assert array.shape == (2,)
    assert array[0] == [1, 2]
