"""The shortest time-out of a V2 request."""

import pytest

from shoal_proxy.codecs.v2 import V2
from shoal_proxy.errors import InvalidRequest
from tests.proxy.signatures import call, signature

X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}


@pytest.mark.parametrize("timeout_us", [1, 0.5])
def test_any_positive_time_is_one(timeout_us: float) -> None:
    decoded = V2().decode(call({"inputs": [X], "parameters": {"timeout": timeout_us}}), signature())

    assert decoded.timeout_ms == timeout_us / 1000


def test_no_time_at_all_is_none() -> None:
    with pytest.raises(InvalidRequest, match="must be a positive number of microseconds, not 0"):
        V2().decode(call({"inputs": [X], "parameters": {"timeout": 0}}), signature())
