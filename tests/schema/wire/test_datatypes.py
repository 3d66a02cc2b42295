import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from shoal_schema.wire.datatypes import bfloat16_to_float32, float32_to_bfloat16

TIES = [one + half for one in (1.0, 1.0078125, -3.0, 2.0**-130) for half in (2.0**-8 * one, 2.0**-9 * one)]


@given(st.lists(st.floats(width=32), min_size=1))
@example(TIES)
def test_bfloat16_bits_are_those_of_torch(numbers: list[float]) -> None:
    array = np.array(numbers, dtype=np.float32)

    bits = float32_to_bfloat16(array)

    expected = torch.from_numpy(array).to(torch.bfloat16).float().numpy()
    assert np.array_equal(bfloat16_to_float32(bits), expected, equal_nan=True)


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0x7FC00000])
def test_every_nan_stays_one(bits: int) -> None:
    nan = np.array([bits], np.uint32).view(np.float32)

    assert np.isnan(bfloat16_to_float32(float32_to_bfloat16(nan))).all()
