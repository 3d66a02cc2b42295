"""Whole numbers that JSON's reader cannot hold are refused where they would be sent on as other numbers."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.codecs.base import InferCall, check_integers
from shoal_proxy.codecs.torchserve import TorchServe
from shoal_proxy.codecs.v1 import V1
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.errors import InvalidRequest
from tests.fakes import tensor
from tests.proxy.signatures import signature

VALUES = signature([tensor("item", "BYTES", [-1], content_type="application/json")])
X = signature([tensor("x", "FP64", [-1, 1])])
JSON = {b"content-type": b"application/json"}
BEYOND = ["18446744073709551616", "-9223372036854775809", "1" * 300, "[1, 2, 99999999999999999999]"]


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("body", ['{"instances": [{"a": @}]}', '{"inputs": [{"a": @}]}', '{"inputs": {"item": [@]}}'])
def test_a_json_value_of_v1_is_sent_on_exactly_or_not_at_all(body: str, number: str) -> None:
    with pytest.raises(InvalidRequest, match="integer beyond 64 bits"):
        V1().decode(InferCall(JSON, body.replace("@", number).encode()), VALUES)


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("body", ['{"a": @}', "@", "[@, 1]", "[1,@]"])
def test_a_torchserve_value_is_sent_on_exactly_or_not_at_all(body: str, number: str) -> None:
    with pytest.raises(InvalidRequest, match="beyond 64 bits"):
        TorchServe().decode(InferCall(JSON, body.replace("@", number).encode()), VALUES)


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("where", ['"parameters": {"seed": @}', '"outputs": [{"name": "y", "parameters": {"k": @}}]'])
def test_a_parameter_of_v2_is_sent_on_exactly_or_not_at_all(where: str, number: str) -> None:
    inputs = '"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 1], "data": [1]}]'
    body = f"{{{inputs}, {where.replace('@', number)}}}"

    with pytest.raises(InvalidRequest, match="beyond 64 bits"):
        V2().decode(InferCall(JSON, body.encode()), X)


@pytest.mark.parametrize(
    "text",
    [
        "[18446744073709551615, -9223372036854775808]",
        "18446744073709551615",
        "-9223372036854775808",
        "1e30",
        "123456789012345678901234567890.5",
        "0.12345678901234567890123",
        "12345678901234567890123e2",
        "1e-00000000000000000000005",
        "1E+00000000000000000000005",
        '{"99999999999999999999999": "99999999999999999999999"}',
        r'["a\"99999999999999999999999", "b\\\\", "99999999999999999999999"]',
    ],
)
def test_other_numbers_and_digits_in_texts_are_let_through(text: str) -> None:
    orjson.loads(text)

    check_integers(memoryview(text.encode()))


INTEGERS = st.integers(-(2**70), 2**70)
VALUE = st.recursive(
    INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text('0"\\ab') | INTEGERS.map(str),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('0"\\a'), inner),
)


def integers_in(value: object) -> list[int]:
    if isinstance(value, dict):
        return [number for inner in value.values() for number in integers_in(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in integers_in(inner)]
    return [value] if isinstance(value, int) else []


@given(VALUE)
def test_what_is_rejected_is_just_what_64_bits_do_not_hold(value: object) -> None:
    beyond = any(not -(2**63) <= number < 2**64 for number in integers_in(value))

    try:
        check_integers(json.dumps(value).encode())
    except InvalidRequest:
        assert beyond
    else:
        assert not beyond
