"""Models by the kind of their results: mixed rows are found, rounding is no alarm, and random results are random.

`SHOAL_TEST_ROWS=100000` runs so many rows of each again, instead of a few thousand.
"""

import os
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.datatypes import Array
from tests.fakes import tensor
from tests.proxy.batching.families import (
    FAMILIES,
    LABELS,
    VECTORS,
    Mix,
    exchanged,
    make,
    repeated,
    sampled,
    serve,
    shifted,
)
from tests.proxy.replicas import Model
from tests.proxy.signatures import signature

ROWS = int(os.environ.get("SHOAL_TEST_ROWS", "1000"))
SEEDS = range(2)
RANDOM = "RandomResults"
CHANGING = "ChangingResults"


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_family_is_accused(name: str, seed: int) -> None:
    model, served = make(name, np.random.default_rng(100 + seed))

    checks = serve(model, served, ROWS, seed).checks

    print(name, seed, checks.evidence)  # noqa: T201 (shown where it fails, or when many rows are asked for)
    assert not checks.violated
    assert not checks.unchecked


@pytest.mark.parametrize("mix", [exchanged, shifted])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", [1])
def test_mixed_rows_of_each_family_are_found(name: str, seed: int, mix: Mix) -> None:
    model, served = make(name, np.random.default_rng(100 + seed), 0.01, mix)

    checks = serve(model, served, 40_000, seed).checks

    assert checks.violated, (name, seed, checks.evidence)


@pytest.mark.parametrize("mix", [exchanged, shifted])
@pytest.mark.parametrize("name", ["cauchy", "exp", "2 labels", "one-hot", "argmax of int8", "int8 scores"])
def test_rows_that_are_always_mixed_are_found_and_not_called_random(name: str, mix: Mix) -> None:
    model, served = make(name, np.random.default_rng(5), 1.0, mix)

    checks = serve(model, served, 3000, 5).checks

    assert checks.violated, checks.evidence
    assert not checks.unchecked


def test_labels_that_are_repeated_are_reported_though_no_violation_is_certain() -> None:
    model, served = make("2 labels", np.random.default_rng(3), 0.01, repeated)

    checks = serve(model, served, 20_000, 3).checks

    assert checks.violated or checks.evidence.varies, checks.evidence
    assert not checks.unchecked


@pytest.mark.parametrize("warmth", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_that_samples_labels_is_random_and_never_accused(seed: int, warmth: float) -> None:
    rng = np.random.default_rng(seed)
    replica = serve(lambda inputs: {"y": sampled(inputs["x"] / warmth, rng)}, LABELS, 3000, seed)

    assert not replica.checks.violated, (seed, replica.checks.evidence)
    assert replica.checks.unchecked == RANDOM


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_are_random_now_and_then_are_never_accused(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        return {"y": np.where(rng.random((len(x), 1)) < share, rng.standard_normal(x.shape), x).astype(np.float32)}

    checks = serve(model, VECTORS, 3000, seed).checks

    assert not checks.violated, (seed, checks.evidence)
    assert checks.unchecked == RANDOM


def with_memory(every: int) -> Model:
    """Return a model that answers one batch in ``every`` with results of the batch before."""
    before, batches = np.zeros((1, 4), np.float32), 0

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        nonlocal before, batches
        batches += 1
        y = inputs["x"] * 2
        stale = np.resize(before, y.shape)
        before = y
        return {"y": stale if batches % every == 0 else y}

    return model


@pytest.mark.parametrize("every", [2, 3, 5, 17])
def test_results_of_the_batch_before_are_no_random_ones(every: int) -> None:
    checks = serve(with_memory(every), VECTORS, 5000, every).checks

    assert checks.unchecked != RANDOM, checks.evidence
    assert checks.violated or checks.unchecked == CHANGING, checks.evidence


def moved_by_the_last() -> tuple[Model, ModelSignature]:
    """Return a model whose results are moved by the mean of the batch before."""
    mean = np.zeros(4, np.float32)

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        nonlocal mean
        y = inputs["x"] * 2 + 10 * mean
        mean = inputs["x"].mean(axis=0)
        return {"y": y}

    return model, VECTORS


def counted() -> tuple[Model, ModelSignature]:
    """Return a model that numbers its batches."""
    batches = 0

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        nonlocal batches
        batches += 1
        return {"y": np.full(len(inputs["x"]), batches % 5)}

    return model, LABELS


@pytest.mark.parametrize("make_model", [moved_by_the_last, counted])
def test_a_model_that_keeps_a_state_is_changing_and_not_random(
    make_model: Callable[[], tuple[Model, ModelSignature]],
) -> None:
    model, served = make_model()

    checks = serve(model, served, 3000, 1).checks

    assert not checks.violated
    assert checks.unchecked == CHANGING


def test_a_result_that_follows_the_place_in_the_batch_is_no_random_one() -> None:
    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": (inputs["x"][:, 0] > 0).astype(np.int64) ^ (np.arange(len(inputs["x"])) % 2)}

    checks = serve(model, LABELS, 3000, 1).checks

    assert checks.violated, checks.evidence
    assert not checks.unchecked


def test_texts_of_two_kinds_that_are_exchanged_are_found() -> None:
    rng = np.random.default_rng(1)
    served = signature(outputs=[tensor("y", "BYTES", [-1])])

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        y = np.where(inputs["x"][:, 0] > 0, "cat", "dog").astype(object)
        return {"y": exchanged(y, rng) if len(y) > 1 and rng.random() < 0.01 else y}

    assert serve(model, served, 40_000, 1).checks.violated
