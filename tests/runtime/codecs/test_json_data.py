from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal_runtime.codecs.json_data import array_from_json, array_to_json
from shoal_schema.wire.datatypes import DTYPES

NUMERIC = [name for name in DTYPES if name not in ("BYTES", "BF16")]


@pytest.mark.parametrize("datatype", NUMERIC)
@given(st.data())
def test_numbers_survive_json_exactly(datatype: str, data: st.DataObject) -> None:
    dtype = DTYPES[datatype]
    elements = hnp.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(max_dims=3, max_side=4), elements=elements))

    text = orjson.dumps(array_to_json(array), option=orjson.OPT_SERIALIZE_NUMPY)
    back = array_from_json(orjson.loads(text), datatype, array.shape)

    assert back.dtype == dtype
    assert np.array_equal(back, array)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_any_json_is_an_array_or_a_value_error(data: Any) -> None:
    for datatype in ("FP32", "INT64", "UINT64", "BOOL", "BYTES"):
        try:
            array = array_from_json(data, datatype, (2,))
        except ValueError:
            continue
        assert array.shape == (2,)


def test_nested_lists_of_the_shape_are_accepted() -> None:
    assert array_from_json([[1, 2], [3, 4]], "INT32", (2, 2)).tolist() == [[1, 2], [3, 4]]
    assert array_from_json([["a", "b"]], "BYTES", (1, 2)).tolist() == [[b"a", b"b"]]


@pytest.mark.parametrize(
    ("data", "datatype", "shape", "message"),
    [
        pytest.param({"a": 1}, "FP32", (1,), "needs a list", id="no list"),
        pytest.param([1.5], "INT32", (1,), "needs whole numbers", id="fraction"),
        pytest.param(["1"], "FP32", (1,), "needs numbers", id="number in a string"),
        pytest.param([True], "INT8", (1,), "needs whole numbers", id="boolean for integer"),
        pytest.param([True, 2], "INT64", (2,), "needs whole numbers", id="boolean beside integer"),
        pytest.param([[1.5], [False]], "FP32", (2,), "needs numbers", id="boolean beside float"),
        pytest.param([2.0**64], "UINT64", (1,), "beyond 64 bits", id="as orjson reads 2**64"),
        pytest.param([1, -(2.0**63) - 2048], "INT64", (2,), "beyond 64 bits", id="as orjson reads -2**63 - 1"),
        pytest.param([2**63, -1], "UINT64", (2,), "out of range for UINT64", id="negative beside large"),
        pytest.param([2**63, 1], "INT64", (2,), "out of range for INT64", id="large for INT64"),
        pytest.param([1], "BOOL", (1,), "needs true or false", id="integer for boolean"),
        pytest.param([None], "FP32", (1,), "needs numbers", id="null"),
        pytest.param([300], "UINT8", (1,), "300, which is out of range for UINT8", id="range"),
        pytest.param([-1], "UINT64", (1,), "-1, which is out of range", id="negative"),
        pytest.param([1e39], "FP32", (1,), "1e[+]39, which is out of range", id="overflow"),
        pytest.param([70000.0], "FP16", (1,), "out of range for FP16", id="half overflow"),
        pytest.param([[1], [2, 3]], "FP32", (3,), "ragged", id="ragged"),
        pytest.param([1, 2], "FP32", (3,), r"2 elements in `data`; shape \[3\] needs 3", id="few"),
        pytest.param([[1, 2], [3, 4]], "FP32", (4, 1), r"shape \[2, 2\]", id="other nesting"),
        pytest.param([1.0], "BF16", (1,), "BF16", id="bfloat16"),
        pytest.param([1], "BYTES", (1,), "needs strings", id="number for bytes"),
        pytest.param([["a"], ["b", "c"]], "BYTES", (2, 1), "nested lists", id="ragged bytes"),
        pytest.param(["a"], "BYTES", (2,), "1 elements", id="few bytes"),
    ],
)
def test_invalid_json_data_is_rejected(data: Any, datatype: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        array_from_json(data, datatype, shape)


def test_integers_beyond_two_to_the_63_survive_beside_small_ones() -> None:
    assert array_from_json([1, 2**64 - 1], "UINT64", (2,)).tolist() == [1, 2**64 - 1]


def test_nan_and_infinities_become_null() -> None:
    array = np.array([1, np.nan, np.inf], dtype=np.float32)

    assert orjson.dumps(array_to_json(array), option=orjson.OPT_SERIALIZE_NUMPY) == b"[1.0,null,null]"


def test_bytes_that_are_not_utf8_are_rejected_in_json() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        array_to_json(np.array([b"\xff"], dtype=object))
