from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
import torch

from shoal_runtime import ItemError, TensorSpec
from shoal_runtime.execution.graph_cache import batch_form
from shoal_runtime.handlers import items
from shoal_runtime.handlers.items import row_item, unreadable_rows
from shoal_runtime.signature.tensors import Signature, make_signature
from shoal_runtime.tensors.torch_tensors import TORCH
from tests.runtime.fakes import texts

Y = TensorSpec("y", "FP32", [-1])


def tensor_batch(inputs: Mapping[str, Any], signature: Signature) -> dict[str, Any]:
    return items.tensor_batch(inputs, signature, TORCH)


def signature(*inputs: TensorSpec) -> Signature:
    return make_signature(inputs, [Y], max_batch_size=8, allowed_batch_sizes=())


@pytest.mark.parametrize(
    ("content_type", "element", "expected"),
    [
        pytest.param(None, b"\xff\x00", b"\xff\x00", id="bytes"),
        pytest.param("image/png", b"\x89", b"\x89", id="image"),
        pytest.param("text/plain", "grün".encode(), "grün", id="text"),
        pytest.param("application/json", b'{"a": [1]}', {"a": [1]}, id="json"),
        pytest.param("application/json", b"[18446744073709551617, 0.1]", [2**64 + 1, 0.1], id="beyond 64 bits"),
        pytest.param("application/json", b"-9223372036854775809", -(2**63) - 1, id="below 64 bits"),
    ],
)
def test_a_bytes_item_is_read_by_its_content_type(content_type: str | None, element: bytes, expected: object) -> None:
    made = signature(TensorSpec("t", "BYTES", [-1], content_type=content_type))

    assert row_item({"t": texts(element)}, 0, made) == expected


@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
def test_an_item_that_cannot_be_decoded_is_an_error(content_type: str) -> None:
    made = signature(TensorSpec("t", "BYTES", [-1], content_type=content_type))

    with pytest.raises(ItemError, match="t is not"):
        row_item({"t": texts(b"ok", b"\xff")}, 1, made)


@pytest.mark.parametrize("element", [b"1e400", b"1" * 400, b"[NaN, 12345678901234567890]"])
def test_json_that_cannot_be_kept_exactly_is_rejected(element: bytes) -> None:
    made = signature(TensorSpec("t", "BYTES", [-1], content_type="application/json"))

    with pytest.raises(ItemError, match="t is not JSON"):
        row_item({"t": texts(element)}, 0, made)


@pytest.mark.parametrize("levels", [500, 1020, 1024, 1025])
def test_long_integers_in_nested_json_are_kept_exactly_or_rejected(levels: int) -> None:
    made = signature(TensorSpec("t", "BYTES", [-1], content_type="application/json"))
    number = 10**19 + 1
    item: Any = None
    # The reader's deepest nesting depends on the recursion limit of the process.
    with nullcontext() if levels == 500 else suppress(ItemError):
        item = row_item({"t": texts(b"[" * levels + b"%d" % number + b"]" * levels)}, 0, made)

    for _ in range(0 if item is None else levels):
        (item,) = item
    assert item in (number, None)


def test_items_of_several_inputs_are_dicts() -> None:
    made = signature(
        TensorSpec("t", "BYTES", [-1, 2], content_type="text/plain"),
        TensorSpec("x", "FP32", [3, -1], batch_dim=1),
        TensorSpec("left_out", "FP32", [-1], optional=True),
    )
    inputs = {
        "t": np.array([[b"a", b"b"], [b"c", b"d"]], dtype=object),
        "x": np.arange(6, dtype=np.float32).reshape(3, 2),
    }

    item = row_item(inputs, 1, made)

    assert sorted(item) == ["t", "x"]
    assert item["t"].tolist() == ["c", "d"]
    assert item["x"].tolist() == [1, 3, 5]


def test_tensors_share_the_memory_of_the_request() -> None:
    array = np.zeros((2, 2), dtype=np.float32)

    batch = tensor_batch({"x": array}, signature(TensorSpec("x", "FP32", [-1, 2])))
    array[0, 0] = 5

    assert batch["x"][0, 0] == 5


def test_bfloat16_bits_become_bfloat16() -> None:
    bits = torch.tensor([1.5, -2.0]).bfloat16().view(torch.int16).numpy().view(np.uint16)

    batch = tensor_batch({"x": bits}, signature(TensorSpec("x", "BF16", [-1])))

    assert batch["x"].dtype == torch.bfloat16
    assert batch["x"].tolist() == [1.5, -2.0]


def test_an_omitted_mask_marks_every_position_as_real() -> None:
    made = signature(
        TensorSpec("ids", "INT64", [-1, -1], pad_axis=1, pad_mask="mask"),
        TensorSpec("mask", "INT32", [-1, -1], optional=True),
    )

    batch = tensor_batch({"ids": np.zeros((2, 3), dtype=np.int64)}, made)

    assert batch["mask"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert batch["mask"].dtype == torch.int32


def test_a_batch_has_one_form_with_a_mask_or_without() -> None:
    made = signature(
        TensorSpec("ids", "INT64", [-1, -1], pad_axis=1, pad_mask="mask"),
        TensorSpec("mask", "INT64", [-1, -1], optional=True),
    )
    ids = np.ones((2, 3), dtype=np.int64)

    assert batch_form(tensor_batch({"ids": ids}, made)) == batch_form(tensor_batch({"mask": ids, "ids": ids}, made))


def test_text_beside_tensors_stays_a_list() -> None:
    made = signature(TensorSpec("t", "BYTES", [-1], content_type="text/plain"), TensorSpec("x", "FP32", [-1]))
    inputs = {"t": texts(b"a"), "x": np.zeros(1, dtype=np.float32)}

    assert tensor_batch(inputs, made)["t"] == ["a"]
    assert unreadable_rows(inputs, made) == {}
    assert unreadable_rows({**inputs, "t": texts(b"\xff")}, made) == {0: "t is not UTF-8 text"}
