"""Names of columns that are numbers, and the first line of a CSV: names or a row."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.codecs.invocations import Invocations
from shoal_proxy.errors import InvalidRequest
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.columns import encode_columns
from tests.fakes import tensor
from tests.proxy.codecs.routes import STRICT
from tests.proxy.signatures import call, signature

NAMELESS = signature([tensor("x", "FP32", [-1, 2])])
DIGITS = signature([tensor("x", "FP32", [-1, 2], columns=encode_columns(["1", "0"]))])


@pytest.mark.parametrize(
    ("text", "header", "model", "found"),
    [
        pytest.param(b"0,1\n7,8\n", "", DIGITS, [[8, 7]], id="names that are numbers"),
        pytest.param(b"0,2\n7,8\n", "; header=absent", DIGITS, [[0, 2], [7, 8]], id="numbers that are no names"),
        pytest.param(b"0,1\n7,8\n", "; header=absent", DIGITS, [[0, 1], [7, 8]], id="no header, as it is said"),
        pytest.param(b"0,1\n7,8\n", "; header=present", STRICT, [[7, 8]], id="default names, as it is said"),
        pytest.param(b"1,2\n7,8\n", "", NAMELESS, [[1, 2], [7, 8]], id="a row of a model without names"),
        pytest.param(b"0,1\n", "", NAMELESS, [[0, 1]], id="a row alone"),
        pytest.param(b"1,0\n7,8\n", "; header=absent", NAMELESS, [[1, 0], [7, 8]], id="a row, as it is said"),
        pytest.param(b"b,a\n7,8\n", "; charset=utf-8; Header=Present", STRICT, [[8, 7]], id="names"),
    ],
)
def test_the_first_line_of_a_csv(text: bytes, header: str, model: ModelSignature, found: Any) -> None:
    decoded = Invocations(1 << 20).decode(call(text, content_type=f"text/csv{header}"), model)
    assert next(iter(decoded.inputs.values())).tolist() == found


@pytest.mark.parametrize(
    ("text", "header", "model", "said"),
    [
        pytest.param(b"5.1,3.5\n7,8\n", "", STRICT, "header=absent", id="a row or names"),
        pytest.param(b"2019,2020\n7,8\n", "", STRICT, "header=present", id="years"),
        pytest.param(b"5.1,3.5\n", "", STRICT, "header=absent", id="a line alone"),
        pytest.param(b"0,1,2\n7,8,9\n", "", DIGITS, "header=present", id="own names and one more"),
        pytest.param(b"0,1\n7,8\n", "", NAMELESS, "header=absent", id="default names"),
        pytest.param(b"1,0\n7,8\n", "", NAMELESS, "header=absent", id="default names in another order"),
        pytest.param(b"1,0\n7,8\n", "; header=present", NAMELESS, "ascending order", id="names, as it is said"),
        pytest.param(b"1,0\n7,8\n", "; header=present", STRICT, "ascending order", id="no names of the model"),
        pytest.param(b"2019,2020\n7,8\n", "; header=present", STRICT, "missing", id="other names"),
    ],
)
def test_a_first_line_that_may_be_names_or_a_row_is_rejected(
    text: bytes, header: str, model: ModelSignature, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Invocations(1 << 20).decode(call(text, content_type=f"text/csv{header}"), model)


@given(st.permutations(range(4)))
def test_default_names_are_none_in_their_order_alone(order: list[int]) -> None:
    wide = signature([tensor("x", "FP32", [-1, 4])])
    named = signature([tensor("x", "FP32", [-1, 4], columns=encode_columns(list("abcd")))])
    numbered = signature([tensor("x", "FP32", [-1, 4], columns=encode_columns(list("0123")))])
    row = [10 * each for each in order]
    text = "\n".join(",".join(map(str, each)) for each in (order, row)).encode()
    calls = [
        call({"dataframe_split": {"columns": order, "data": [row]}}),
        call({"dataframe_records": [{str(name): value for name, value in zip(order, row, strict=True)}]}),
        call(text, content_type="text/csv; header=present"),
    ]
    for each in calls:
        assert Invocations(1 << 20).decode(each, numbered).inputs["x"].tolist() == [[0, 10, 20, 30]]
        for model in (wide, named):
            if order == sorted(order):
                assert Invocations(1 << 20).decode(each, model).inputs["x"].tolist() == [[0, 10, 20, 30]]
            else:
                with pytest.raises(InvalidRequest, match="ascending order"):
                    Invocations(1 << 20).decode(each, model)
