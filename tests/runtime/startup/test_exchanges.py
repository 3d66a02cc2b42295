"""Batches that give rows the results of other rows, in any datatype and at any place."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shoal_runtime import TensorSpec
from shoal_runtime.signature.tensors import Signature
from shoal_runtime.startup.invariance import RowDependence, dependence_warnings
from shoal_runtime.startup.trial_rows import GeneratedRows, kinds
from shoal_schema.wire.datatypes import Array

Function = Callable[[Array], Array]
WEIGHT = np.random.default_rng(5).standard_normal((6, 6)).astype(np.float32)


def dealt(x: Array) -> Array:
    return np.concatenate([x[::2], x[1::2]])


def in_pairs(x: Array) -> Array:
    even = len(x) // 2 * 2
    return np.concatenate([x[:even].reshape(-1, 2, *x.shape[1:])[:, ::-1].reshape(x[:even].shape), x[even:]])


def beyond(rows: int) -> Function:
    return lambda x: x[::-1] if len(x) >= rows else x


ORDERS: dict[str, Function] = {
    "reversed": lambda x: x[::-1],
    "rolled": lambda x: np.roll(x, 1, 0),
    "dealt out": dealt,
    "in pairs": in_pairs,
    "large batches reversed": beyond(5),
    "the largest batches reversed": beyond(32),
}
RESULTS: dict[str, tuple[str, Function]] = {
    "numbers": ("FP32", lambda x: x @ WEIGHT),
    "numbers far from 0": ("FP32", lambda x: 290 + 8 * np.tanh(x)),
    "whole numbers": ("INT64", lambda x: (x * 1000).astype(np.int64)),
    "labels": ("INT64", lambda x: (x @ WEIGHT).argmax(1)[:, None].repeat(6, 1)),
    "truth values": ("BOOL", lambda x: x > 0),
    "texts": ("BYTES", lambda x: np.array([[b"%f" % each for each in row] for row in x], object)),
}


def tried(function: Function, output: str, *, sizes: Sequence[int] = (), scale: float = 1) -> list[str]:
    signature = Signature(
        (TensorSpec("x", "FP32", [-1, 6]),),
        (TensorSpec("y", output, [-1, 6]),),
        sizes[-1] if sizes else 32,
        tuple(sizes),
    )
    [kind] = [each for each in kinds(anywhere=True) if each.scale == scale and not each.missing and not each.sparse][:1]
    return list(
        dependence_warnings(lambda batch: {"y": function(batch["x"])}, GeneratedRows(signature), signature, [kind])
    )


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_rows_with_the_results_of_others_are_found(order: Function, result: tuple[str, Function]) -> None:
    datatype, function = result
    with pytest.raises(RowDependence):
        tried(lambda x: order(function(x)), datatype)


@pytest.mark.parametrize("sizes", [(), (4,), (1, 2, 8), (1,)], ids=str)
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_rows_with_their_own_results_are_left_in_peace(result: tuple[str, Function], sizes: Sequence[int]) -> None:
    datatype, function = result
    assert tried(function, datatype, sizes=sizes) == []


def test_labels_of_a_scale_of_the_whole_batch_are_no_exchange() -> None:
    def quantized(x: Array) -> Array:
        scale = np.abs(x).max() / 127
        labels: Array = (np.round(x / scale) * scale @ WEIGHT).argmax(1)[:, None].repeat(6, 1)
        return labels

    tried(quantized, "INT64")
    tried(lambda x: quantized(x) % 2, "INT64")


def test_random_labels_are_no_exchange() -> None:
    rng = np.random.default_rng(1)

    tried(lambda x: rng.integers(0, 2, (len(x), 1)).repeat(6, 1), "INT64")


def test_time_ends_the_trial() -> None:
    signature = Signature((TensorSpec("x", "FP32", [-1, 6]),), (TensorSpec("y", "INT64", [-1, 6]),), 32, ())

    list(
        dependence_warnings(
            lambda batch: {"y": dealt((batch["x"] * 1000).astype(np.int64))},
            GeneratedRows(signature),
            signature,
            kinds(anywhere=True)[:1],
            is_over=lambda: True,
        )
    )
