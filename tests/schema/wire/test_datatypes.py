import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal_schema.wire.datatypes import bfloat16_to_float32, float32_to_bfloat16


@given(st.lists(st.floats(width=32), min_size=1))
def test_bfloat16_bits_are_those_of_torch(numbers: list[float]) -> None:
    array = np.array(numbers, dtype=np.float32)

    bits = float32_to_bfloat16(array)

    expected = torch.from_numpy(array).to(torch.bfloat16).float().numpy()
    assert np.array_equal(bfloat16_to_float32(bits), expected, equal_nan=True)
