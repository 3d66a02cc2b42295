import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.wire.datatypes import DATATYPES, decode, encode, numpy_dtype, object_array
from shoal_schema.wire.datatypes import Array

NUMBERS = sorted(DATATYPES - {"BYTES", "BF16"})
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@given(st.data(), st.sampled_from(NUMBERS))
def test_numbers_come_back_from_the_wire_as_they_went(data: st.DataObject, datatype: str) -> None:
    array = data.draw(hnp.arrays(numpy_dtype(datatype), SHAPES))

    back = decode(encode(array, datatype), datatype, array.shape)

    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_byte_strings_come_back_from_the_wire_as_they_went(elements: list[bytes]) -> None:
    array = object_array(elements, (len(elements),))

    assert decode(encode(array, "BYTES"), "BYTES", (len(elements),)).tolist() == elements


def test_bytes_elements_carry_a_little_endian_length() -> None:
    assert encode(object_array([b"ab", b""], (2,)), "BYTES") == b"\x02\0\0\0ab\0\0\0\0"


def test_a_transposed_array_is_written_row_by_row() -> None:
    array: Array = np.array([[1, 2], [3, 4]], dtype="<i4").T

    assert encode(array, "INT32") == struct.pack("<4i", 1, 3, 2, 4)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        pytest.param(1.0, 0x3F80, id="one"),
        pytest.param(1.00390625, 0x3F80, id="half way rounds to the even neighbour below"),
        pytest.param(1.01171875, 0x3F82, id="half way rounds to the even neighbour above"),
        pytest.param(-2.5, 0xC020, id="negative"),
        pytest.param(float("inf"), 0x7F80, id="infinity"),
        pytest.param(3.4e38, 0x7F80, id="beyond the largest becomes infinity"),
    ],
)
def test_bfloat16_is_the_nearest_upper_half_of_float32(value: float, bits: int) -> None:
    assert encode(np.array([value], dtype="<f4"), "BF16") == struct.pack("<H", bits)


def test_a_bfloat16_nan_stays_one() -> None:
    quiet_bits = np.array([0x7F800001, 0xFFFFFFFF], dtype="<u4").view("<f4")

    assert np.isnan(decode(encode(quiet_bits, "BF16"), "BF16", (2,))).all()


@given(hnp.arrays(np.dtype("<u2"), st.integers(0, 8)))
def test_bfloat16_comes_back_from_the_wire_as_it_went(bits: Array) -> None:
    array = decode(bits.tobytes(), "BF16", bits.shape)

    np.testing.assert_array_equal(decode(encode(array, "BF16"), "BF16", bits.shape), array)


@pytest.mark.parametrize(
    ("data", "datatype", "shape"),
    [
        pytest.param(b"\0\0\0", "FP32", (1,), id="too short"),
        pytest.param(b"\0" * 8, "FP32", (1,), id="too long"),
        pytest.param(b"\5\0\0", "BYTES", (1,), id="inside a length"),
        pytest.param(b"\5\0\0\0ab", "BYTES", (1,), id="inside an element"),
        pytest.param(b"\1\0\0\0a", "BYTES", (2,), id="too few elements"),
        pytest.param(b"\xff\xff\xff\xff", "BYTES", (1,), id="a length of four gigabytes"),
    ],
)
def test_bytes_that_are_not_the_announced_tensor_are_refused(
    data: bytes, datatype: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"bytes|element"):
        decode(data, datatype, shape)
