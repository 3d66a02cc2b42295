"""The time of the forward pass that the runtime reports."""

from typing import Any

import orjson
import pytest

from shoal_proxy.codecs.upstream import decode_result
from tests.fakes import tensor
from tests.proxy.signatures import signature

MODEL = signature(outputs=[tensor("y", "FP32", [-1, 2])])
Y = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


@pytest.mark.parametrize(
    ("forward_us", "expected"),
    [
        (0, 0.0),
        (1500, 0.0015),
        (2.5, 2.5e-6),
        (10**12 - 1, 999_999.999999),
        (10**12, None),
        (-1, None),
        ("1", None),
        (None, None),
    ],
)
def test_only_a_time_that_makes_sense_is_one(forward_us: Any, expected: float | None) -> None:
    body = orjson.dumps({"outputs": [Y], "parameters": {"forward_us": forward_us}})
    assert decode_result(body, None, MODEL).forward_s == expected
