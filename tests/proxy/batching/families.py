"""Models by the kind of their results, and what mixes their rows: pure simulations with seeds."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32, float32_to_bfloat16
from tests.fakes import tensor
from tests.proxy.replicas import MAX_ROWS, Model, Replica
from tests.proxy.signatures import signature

Compute = Callable[[Array, np.random.Generator], Array]
Mix = Callable[[Array, np.random.Generator], Array]

LABELS: Final = signature(outputs=[tensor("y", "INT64", [-1])])
SCALARS: Final = signature(outputs=[tensor("y", "FP32", [-1, 1])])
VECTORS: Final = signature(outputs=[tensor("y", "FP32", [-1, 4])])
BYTES: Final = signature(outputs=[tensor("y", "INT8", [-1, 4])])
WEIGHTS: Final = np.random.default_rng(7).standard_normal((4, 4)).astype(np.float32)


def bfloat16(values: Array) -> Array:
    """Round to BF16, as FP32."""
    rounded: Array = bfloat16_to_float32(float32_to_bfloat16(values.astype(np.float32)))
    return rounded


def logits(x: Array) -> Array:
    """Return logits in BF16 whose last digits follow the size of the batch, as those of kernels do."""
    order = np.roll(np.arange(4), len(x) % 4)
    total = np.zeros((len(x), 4), np.float32)
    for column in order:
        total = bfloat16(total + bfloat16(x[:, column : column + 1] * WEIGHTS[column]))
    return total


def int8(x: Array) -> Array:
    """Return logits of a layer whose activations are quantized by the largest of the batch."""
    scale = float(np.abs(x).max()) / 127
    product: Array = (np.round(x / scale) * scale).astype(np.float32) @ WEIGHTS
    return product


def cauchy(x: Array) -> Array:
    ratio: Array = (x[:, :1] / x[:, 1:2]).astype(np.float32)
    return ratio


def one_hot(classes: Array) -> Array:
    return np.eye(4, dtype=np.float32)[classes]


def sampled(x: Array, rng: np.random.Generator) -> Array:
    """Draw a label of each row by its softmax."""
    drawn: Array = (2 * x + rng.gumbel(size=x.shape)).argmax(axis=1)
    return drawn


FAMILIES: Final[Mapping[str, tuple[ModelSignature, Compute]]] = {
    "normal": (VECTORS, lambda x, _: x * 2),
    "cauchy": (SCALARS, lambda x, _: cauchy(x)),
    "cauchy of 4": (VECTORS, lambda x, _: x / np.roll(x, 1, axis=1)),
    "exp": (SCALARS, lambda x, _: np.exp(4 * x[:, :1])),
    "exp of BF16": (SCALARS, lambda x, _: np.exp(3 * logits(x)[:, :1])),
    "cauchy in BF16": (SCALARS, lambda x, _: logits(x)[:, :1] / bfloat16(x[:, 1:2])),
    "BF16 logits": (VECTORS, lambda x, _: logits(x)),
    "int8 logits": (VECTORS, lambda x, _: int8(x)),
    "2 labels": (LABELS, lambda x, _: (x[:, 0] > 0).astype(np.int64)),
    "3 labels": (LABELS, lambda x, _: np.digitize(x[:, 0], [-0.4, 0.4])),
    "rare label": (LABELS, lambda x, _: (x[:, 0] > 1.6).astype(np.int64)),
    "booleans": (
        signature(outputs=[tensor("y", "BOOL", [-1])]),
        lambda x, _: x[:, 0] > 0,
    ),
    "one-hot": (VECTORS, lambda x, _: one_hot(x.argmax(axis=1))),
    "argmax of BF16": (LABELS, lambda x, _: logits(x).argmax(axis=1)),
    "one-hot of BF16": (VECTORS, lambda x, _: one_hot(logits(x).argmax(axis=1))),
    "argmax of int8": (LABELS, lambda x, _: int8(x).argmax(axis=1)),
    "int8 scores": (BYTES, lambda x, _: np.clip(np.round(20 * int8(x)), -128, 127).astype(np.int8)),
}
"""By name, what is served and the result of each row."""


def exchanged(y: Array, rng: np.random.Generator) -> Array:
    """Exchange two rows."""
    one, other = rng.choice(len(y), 2, replace=False)
    mixed = y.copy()
    mixed[[one, other]] = y[[other, one]]
    return mixed


def shifted(y: Array, _: np.random.Generator) -> Array:
    return np.roll(y, 1, axis=0)


def make(name: str, rng: np.random.Generator, leak: float = 0.0, mix: Mix = exchanged) -> tuple[Model, ModelSignature]:
    """Return a model of a family, which mixes rows in a share of its batches, and its signature."""
    served, compute = FAMILIES[name]

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            y = compute(inputs["x"], rng)
        return {"y": mix(y, rng) if len(y) > 1 and rng.random() < leak else y}

    return model, served


def serve(model: Model, served: ModelSignature, rows: int, seed: int) -> Replica:
    """Serve batches of random sizes until so many rows were run again, or something was concluded."""
    replica = Replica(model, served)
    replica.rng = np.random.default_rng(seed)
    while replica.checks.wants_rows and replica.checks.checked_rows < rows:
        for _ in range(4):
            replica.ask(*replica.random_rows(int(replica.rng.integers(2, MAX_ROWS + 1))))
        replica.idle(0.5)
    return replica


def repeated(y: Array, _: np.random.Generator) -> Array:
    """Give the second row the result of the first."""
    mixed = y.copy()
    mixed[1] = y[0]
    return mixed
