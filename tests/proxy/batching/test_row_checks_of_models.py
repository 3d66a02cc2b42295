"""Real models are not accused: what kernels, bfloat16 and quantization do to a row among others is noise.

`SHOAL_TEST_ROWS=1000000` runs so many rows of each again, instead of a few thousand.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from shoal_schema.wire.datatypes import Array, float32_to_bfloat16
from tests.fakes import tensor
from tests.proxy.replicas import Replica
from tests.proxy.signatures import signature

torch = pytest.importorskip("torch")

ROWS = int(os.environ.get("SHOAL_TEST_ROWS", "3000"))
CLASSES = 10
SCORES = tensor("y", "FP32", [-1, CLASSES])
LABELS = tensor("y", "INT64", [-1])


def perceptron() -> Any:
    """Return a network of linear layers, with normalization, whose outputs are logits."""
    torch.manual_seed(0)
    layers = torch.nn
    return layers.Sequential(
        layers.Linear(32, 64),
        layers.LayerNorm(64),
        layers.GELU(),
        layers.Linear(64, 64),
        layers.ReLU(),
        layers.Linear(64, CLASSES),
    ).eval()


def quantized() -> Any:
    """Return the same with weights of 8 bits, and activations scaled by the largest of the batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(perceptron(), {torch.nn.Linear}, dtype=torch.qint8)


def attention() -> Any:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (4, 8)), layer, torch.nn.Flatten(), torch.nn.Linear(32, CLASSES)
    ).eval()


def runner(model: Any, after: Callable[[Any], Any], *, dtype: Any = torch.float32) -> Any:
    model = model.to(dtype) if dtype != torch.float32 else model

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode():
            return {"y": after(model(torch.from_numpy(inputs["x"]).to(dtype))).numpy()}

    return run


def as_floats(y: Any) -> Any:
    return y.float()


def as_probabilities(y: Any) -> Any:
    return y.float().softmax(dim=1)


def as_labels(y: Any) -> Any:
    return y.argmax(dim=1)


@pytest.mark.parametrize("after", [as_floats, as_probabilities, as_labels])
@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (perceptron, torch.float32),
        (perceptron, torch.bfloat16),
        (attention, torch.float32),
        (attention, torch.bfloat16),
        (quantized, torch.float32),
    ],
)
def test_no_real_model_is_accused(make: Callable[[], Any], dtype: Any, after: Callable[[Any], Any]) -> None:
    served = signature([tensor("x", "FP32", [-1, 32])], [LABELS if after is as_labels else SCORES])
    replica = Replica(runner(make(), after, dtype=dtype), served)
    while replica.checks.checked_rows < ROWS:
        rows = replica.rng.standard_normal((replica.rng.integers(2, 9), 32)).astype(np.float32)
        replica.ask(*rows)
        replica.idle(0.2)

    print(  # noqa: T201 (shown where it fails, or when many rows are asked for)
        make.__name__, dtype, after.__name__, replica.checks.checked_rows, replica.checks.suspected_rows,
        replica.checks.evidence.foreign, f"{replica.checks._noise:.2g}",
    )  # fmt: skip
    assert not replica.checks.violated
    assert not replica.checks.unchecked


def test_bfloat16_outputs_are_read_as_numbers() -> None:
    model = runner(perceptron(), as_floats, dtype=torch.bfloat16)
    served = signature([tensor("x", "FP32", [-1, 32])], [tensor("y", "BF16", [-1, CLASSES])])
    replica = Replica(lambda inputs: {"y": float32_to_bfloat16(model(inputs)["y"])}, served)
    for _ in range(200):
        replica.ask(*replica.rng.standard_normal((8, 32)).astype(np.float32))
        replica.idle(0.2)

    assert replica.checks.checked_rows > 100
    assert not replica.checks.evidence.foreign
