from typing import Any

import numpy as np
import orjson
import pytest
import torch

from shoal_runtime import TensorSpec
from shoal_runtime.errors import ForwardFailed
from shoal_runtime.handlers import values
from shoal_runtime.handlers.values import stack_rows
from shoal_runtime.signature.tensors import make_signature
from shoal_runtime.tensors.torch_tensors import TORCH

X = TensorSpec("x", "FP32", [-1])


def row_array(value: Any, spec: TensorSpec) -> Any:
    return values.row_array(value, spec, TORCH)


def row_outputs(value: Any, signature: Any) -> Any:
    return values.row_outputs(value, signature, TORCH)


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "expected"),
    [
        pytest.param(3, "FP32", [-1], 3.0, id="integer for float"),
        pytest.param(True, "INT64", [-1], 1, id="boolean for integer"),
        pytest.param(7, "UINT8", [-1], 7, id="integer for small integer"),
        pytest.param([1.0, 2.0], "FP16", [-1, 2], [1.0, 2.0], id="list"),
        pytest.param(np.float64(0.5), "FP32", [-1], 0.5, id="numpy scalar"),
        pytest.param(torch.tensor([1.5]).bfloat16(), "FP32", [-1, -1], [1.5], id="bfloat16 tensor"),
        pytest.param([1, 2**64 - 1], "UINT64", [-1, 2], [1, 2**64 - 1], id="large beside small"),
        pytest.param(2**70, "FP64", [-1], 2.0**70, id="large integer for float"),
        pytest.param([float("inf"), 1.0], "FP16", [-1, 2], [float("inf"), 1.0], id="infinity"),
        pytest.param(torch.tensor(2**63, dtype=torch.uint64), "UINT64", [-1], 2**63, id="unsigned tensor"),
        pytest.param([], "INT32", [-1, -1], [], id="empty list"),
        pytest.param("grün", "BYTES", [-1], "grün".encode(), id="text"),
        pytest.param(b"\xff", "BYTES", [-1], b"\xff", id="bytes"),
        pytest.param(["a", b"b"], "BYTES", [-1, 2], [b"a", b"b"], id="texts"),
        pytest.param(np.array(["a", "bc"]), "BYTES", [-1, 2], [b"a", b"bc"], id="text array"),
    ],
)
def test_values_are_cast_to_the_declared_datatype(value: Any, datatype: str, shape: list[int], expected: Any) -> None:
    assert row_array(value, TensorSpec("y", datatype, shape)).tolist() == expected


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "message"),
    [
        pytest.param(1.5, "INT64", [-1], "INT64.*float64", id="fraction"),
        pytest.param(300, "UINT8", [-1], "UINT8.*hold 300", id="range"),
        pytest.param(-1, "UINT64", [-1], "hold -1", id="negative"),
        pytest.param(2**31 + 5, "INT32", [-1], "hold 2147483653", id="above INT32"),
        pytest.param([1, 2**64], "UINT64", [-1, 2], "cannot hold", id="above UINT64"),
        pytest.param([2**63, -1], "UINT64", [-1, 2], "cannot hold", id="negative beside large"),
        pytest.param(np.array([5, -1]), "UINT32", [-1, 2], "hold -1", id="negative in an array"),
        pytest.param(1e6, "FP16", [-1], "hold 1000000.0", id="half"),
        pytest.param(100_000, "FP16", [-1], "hold 100000", id="integer for half"),
        pytest.param(1e300, "FP32", [-1], r"hold 1e\+300", id="single"),
        pytest.param(3.4e38, "BF16", [-1], "BF16", id="rounded up"),
        pytest.param(10**400, "FP64", [-1], "cannot hold", id="above FP64"),
        pytest.param(float("nan"), "INT32", [-1], "float64, such as nan", id="nan"),
        pytest.param(3.0, "INT32", [-1], "float64, such as 3.0", id="whole float"),
        pytest.param(float("inf"), "UINT8", [-1], "such as inf", id="infinity"),
        pytest.param(2, "BOOL", [-1], "BOOL.*int64", id="number for boolean"),
        pytest.param(1j, "FP32", [-1], "complex128", id="complex"),
        pytest.param("1", "FP32", [-1], "<U1", id="text for number"),
        pytest.param(1, "BYTES", [-1], "BYTES.*int", id="number for text"),
        pytest.param([1.0], "FP32", [-1, 2], r"shape \[1\]", id="shape"),
        pytest.param("a", "BYTES", [-1, 2], "1 levels of lists", id="flat"),
        pytest.param([["a"], []], "BYTES", [-1, 2, 1], "ragged", id="ragged"),
        pytest.param(None, "FP32", [-1], "object", id="nothing"),
    ],
)
def test_values_that_do_not_fit_are_rejected(value: Any, datatype: str, shape: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        row_array(value, TensorSpec("y", datatype, shape))


def test_any_json_value_is_one_element() -> None:
    spec = TensorSpec("y", "BYTES", [-1], content_type="application/json")

    array = row_array({"label": "cat", "box": [1, np.float32(2)]}, spec)

    assert array.shape == ()
    assert orjson.loads(array.item()) == {"label": "cat", "box": [1, 2.0]}
    with pytest.raises(ValueError, match="JSON"):
        row_array(object(), spec)


def test_bfloat16_outputs_are_bits() -> None:
    assert row_array(1.5, TensorSpec("y", "BF16", [-1])).tolist() == 0x3FC0


def test_a_row_of_several_outputs_is_a_dict() -> None:
    outputs = [TensorSpec("a", "FP32", [-1]), TensorSpec("b", "BYTES", [-1])]
    signature = make_signature([X], outputs, max_batch_size=1, allowed_batch_sizes=())

    assert row_outputs({"a": 1, "b": "t"}, signature)["b"].item() == b"t"
    with pytest.raises(ValueError, match="output b"):
        row_outputs({"a": 1}, signature)
    with pytest.raises(ValueError, match="not int"):
        row_outputs(1, signature)


def test_the_only_output_may_be_named_or_not() -> None:
    signature = make_signature([X], [X], max_batch_size=1, allowed_batch_sizes=())

    assert row_outputs(2, signature)["x"] == row_outputs({"x": 2}, signature)["x"]


def test_rows_are_stacked_along_the_batch_dimension() -> None:
    spec = TensorSpec("y", "FP32", [2, -1], batch_dim=1)
    signature = make_signature([X], [spec], max_batch_size=1, allowed_batch_sizes=())
    rows = [row_outputs(value, signature) for value in ([1, 2], [3, 4], [5, 6])]

    assert stack_rows(rows, signature)["y"].tolist() == [[1, 3, 5], [2, 4, 6]]
    assert stack_rows([], signature) == {}


def test_ragged_rows_do_not_stack() -> None:
    spec = TensorSpec("y", "FP32", [-1, -1])
    signature = make_signature([X], [spec], max_batch_size=1, allowed_batch_sizes=())
    rows = [row_outputs(value, signature) for value in ([1], [3, 4])]

    with pytest.raises(ForwardFailed, match=r"output y .*\[\[1\], \[2\]\]"):
        stack_rows(rows, signature)
