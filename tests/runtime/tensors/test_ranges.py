"""Casts to the declared datatype neither wrap around nor produce infinities."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime import TensorSpec
from shoal_runtime.errors import ForwardFailed
from shoal_runtime.execution.placement import HostPlacement, Placement
from shoal_runtime.execution.torch_placement import CpuPlacement
from shoal_runtime.handlers.outputs import OutputConverter
from shoal_runtime.signature.tensors import make_signature
from shoal_runtime.tensors.fetch import HostFetch
from shoal_runtime.tensors.library import Library
from shoal_runtime.tensors.numpy_tensors import NUMPY
from shoal_runtime.tensors.torch_ranges import holds_all
from shoal_runtime.tensors.torch_tensors import TORCH
from shoal_schema.wire.codes import CODES
from tests.runtime.fakes import Adder, Bench

X = np.arange(6, dtype=np.float32).reshape(3, 2)
INTEGERS = [name for name in CODES if "INT" in name]
FLOATS = ["FP16", "BF16", "FP32", "FP64"]


def returning(result: Any, datatype: str) -> Any:
    class Fixed(Adder):
        outputs = (TensorSpec("y", datatype, [-1, 2]),)

        def forward(self, batch: Mapping[str, Any]) -> Any:
            return result

    return Fixed()


@pytest.mark.parametrize(
    ("value", "source", "datatype", "shown"),
    [
        (300, torch.int64, "UINT8", "300"),
        (-1, torch.int8, "UINT8", "-1"),
        (2**31 + 5, torch.int64, "INT32", "2147483653"),
        (-1, torch.int64, "UINT64", "-1"),
        (2**63, torch.uint64, "INT64", "9223372036854775808"),
        (2**63 + 7, torch.uint64, "UINT32", "9223372036854775815"),
        (2**32 - 1, torch.uint32, "INT32", "4294967295"),
        (65535, torch.uint16, "INT16", "65535"),
        (1e6, torch.float32, "FP16", "1000000.0"),
        (70000, torch.int32, "FP16", "70000"),
        (1e300, torch.float64, "FP32", "1e+300"),
        (3.4e38, torch.float32, "BF16", "3.3999999521443642e+38"),
    ],
)
@pytest.mark.parametrize(
    ("form", "placement"),
    [*((form, CpuPlacement()) for form in ("tensor", "array", "rows")), ("array", HostPlacement())],
    ids=["tensor", "array", "rows", "without torch"],
)
def test_only_the_row_with_a_number_out_of_range_fails(
    value: float, source: torch.dtype, datatype: str, shown: str, form: str, placement: Placement
) -> None:
    tensor = torch.tensor([[1, 2], [3, value], [5, 6]], dtype=source)
    result = {"tensor": tensor, "array": tensor.numpy(), "rows": [row.clone() for row in tensor]}[form]

    with Bench(returning(result, datatype), placement=placement) as bench:
        answered = bench.run({"x": X})

    assert [(e.row, e.status) for e in answered.errors] == [(1, 500)]
    assert shown[:12] in answered.errors[0].message
    rows = answered.outputs["y"]
    numbers = rows.view(np.uint16).astype(np.uint32) << 16 if datatype == "BF16" else rows
    assert (numbers.view(np.float32) if datatype == "BF16" else numbers).tolist() == [[1, 2], [5, 6]]


def test_without_valid_rows_there_are_no_outputs() -> None:
    with Bench(returning(torch.full((3, 2), 300), "UINT8")) as bench:
        answered = bench.run({"x": X})

    assert answered.outputs == {}
    assert [e.row for e in answered.errors] == [0, 1, 2]


def test_padding_out_of_range_is_no_error() -> None:
    with Bench(
        returning(torch.tensor([[1, 1], [2, 2], [3, 3], [300, 0]]), "UINT8"), allowed_batch_sizes=(4, 8)
    ) as bench:
        answered = bench.run({"x": X})

    assert answered.errors == []
    assert answered.outputs["y"].tolist() == [[1, 1], [2, 2], [3, 3]]


def test_rows_are_along_the_batch_dimension() -> None:
    class Columns:
        inputs = (TensorSpec("x", "FP32", [2, -1], batch_dim=1),)
        outputs = (TensorSpec("y", "UINT8", [2, -1], batch_dim=1), TensorSpec("z", "INT32", [-1]))

        def forward(self, batch: Mapping[str, Any]) -> Any:
            return {"y": torch.tensor([[1, 300, 3], [4, 5, 6]]), "z": torch.tensor([1, 2, 2**40])}

    with Bench(Columns()) as bench:
        answered = bench.run({"x": np.zeros((2, 3), np.float32)})

    assert [e.row for e in answered.errors] == [1, 2]
    assert answered.outputs["y"].tolist() == [[1], [4]]
    assert answered.outputs["z"].tolist() == [1]


@pytest.mark.parametrize("number", [math.nan, 2.5, 3.0])
def test_a_floating_point_result_is_never_an_integer(number: float) -> None:
    with Bench(returning(torch.full((3, 2), number), "INT32")) as bench, pytest.raises(ForwardFailed, match="INT32"):
        bench.run({"x": X})


def test_nan_and_infinities_of_the_model_are_kept() -> None:
    with Bench(returning(torch.tensor([[math.nan, 1], [math.inf, 2], [-math.inf, 3]]), "FP16")) as bench:
        answered = bench.run({"x": X})

    assert answered.errors == []
    assert str(answered.outputs["y"][:, 0].tolist()) == "[nan, inf, -inf]"


def fits(number: float, datatype: str) -> bool:
    """Return the expected outcome, computed by Python."""
    if datatype in INTEGERS:
        info = torch.iinfo(TORCH.dtype(datatype))
        return info.min <= number <= info.max
    return not math.isfinite(number) or bool(
        torch.tensor(number, dtype=torch.float64).to(TORCH.dtype(datatype)).isfinite()
    )


@pytest.mark.parametrize("library", [TORCH, NUMPY], ids=["torch", "numpy"])
@given(st.data())
def test_every_number_is_kept_or_rejected(library: Library, data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([*INTEGERS, *(name for name in FLOATS if library.dtype(name) is not None)]))
    wanted = data.draw(st.sampled_from(FLOATS if source in FLOATS else [*INTEGERS, *FLOATS]))
    dtype = TORCH.dtype(source)
    if source in INTEGERS:
        info = torch.iinfo(dtype)
        edges = [
            n
            for name in INTEGERS
            for e in (torch.iinfo(TORCH.dtype(name)),)
            for n in (e.min - 1, e.min, e.max, e.max + 1)
        ]
        numbers: Any = st.sampled_from([n for n in edges if info.min <= n <= info.max]) | st.integers(
            info.min, info.max
        )
    else:
        numbers = st.floats() | st.sampled_from([65504.0, 65520.0, 3.4e38, 3.39e38, 1e39, -1e39])
    given_rows = data.draw(st.lists(numbers, min_size=1, max_size=5))
    tensor = torch.tensor(given_rows, dtype=dtype)
    signature = make_signature(
        [TensorSpec("x", "FP32", [-1])], [TensorSpec("y", wanted, [-1])], max_batch_size=8, allowed_batch_sizes=()
    )
    answers = OutputConverter(signature, None, HostFetch, library)

    # numpy has no bfloat16, so it is not a source there.
    result: Any = tensor if library is TORCH else tensor.numpy()
    collected = answers.collect(library.as_tensor(result)).wait()
    outputs, errors = answers.finish(collected, range(len(tensor)), len(tensor), {})

    exact = [row.item() for row in tensor]
    kept = [n for n in exact if fits(n, wanted)]
    assert [e.row for e in errors] == [row for row, n in enumerate(exact) if not fits(n, wanted)]
    if wanted in INTEGERS and kept:
        assert outputs["y"].tolist() == kept


def test_numbers_are_not_checked_if_the_type_holds_them_all() -> None:
    assert holds_all(torch.int64, torch.int32)
    assert holds_all(torch.float32, torch.bfloat16)
    assert holds_all(torch.float32, torch.int64)
    assert holds_all(torch.uint8, torch.bool)
    assert not holds_all(torch.int64, torch.uint64)
    assert not holds_all(torch.uint64, torch.int8)
    assert not holds_all(torch.float16, torch.uint16)
    assert not holds_all(torch.bfloat16, torch.float32)
