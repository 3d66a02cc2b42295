from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from shoal_runtime import PaddingRule, TensorSpec
from shoal_runtime.errors import LoadError
from shoal_runtime.handlers.base import stages_of
from shoal_runtime.importing import HandlerFailed
from shoal_runtime.loading import Model
from shoal_runtime.placement import CpuPlacement
from shoal_runtime.readiness import Readiness
from shoal_runtime.starting import warm
from shoal_runtime.warmup import plan_warmup
from tests.runtime.fakes import Adder, signature_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def model_of(handler: Any, sizes: Sequence[int] = ()) -> Model:
    signature = signature_of(handler, allowed_batch_sizes=sizes)
    return Model("m", "p", handler, stages_of(handler), signature, graphs=False)


def shapes(handler: Any, sizes: Sequence[int] = ()) -> list[Any]:
    model = model_of(handler, sizes)
    made = [batch.make() for batch in plan_warmup(model.stages, model.signature, handler)]
    return [{name: tuple(t.shape) for name, t in batch.items()} for batch in made]


def test_every_allowed_size_is_warmed_the_largest_first() -> None:
    assert shapes(Adder(), (2, 8)) == [{"x": (8, 2)}, {"x": (2, 2)}]


def test_any_size_is_warmed_at_its_ends() -> None:
    assert shapes(Adder()) == [{"x": (8, 2)}, {"x": (1, 2)}]


def test_every_bucket_is_warmed() -> None:
    class Ids:
        inputs = (
            TensorSpec("ids", "INT64", [-1, -1], pad_axis=1, pad_buckets=[4, 8], pad_mask="mask"),
            TensorSpec("mask", "INT64", [-1, -1], optional=True, pad_axis=1, pad_buckets=[4, 8]),
        )
        outputs = (TensorSpec("y", "FP32", [-1]),)

        def forward(self, batch: Any) -> Any:
            return batch

    assert shapes(Ids(), (8,)) == [
        {"ids": (8, 8), "mask": (8, 8)},
        {"ids": (8, 4), "mask": (8, 4)},
    ]


class Text:
    inputs = (TensorSpec("t", "BYTES", [-1], content_type="text/plain"),)
    outputs = (TensorSpec("n", "INT64", [-1]),)
    preprocess_padding = (PaddingRule("value", pad_axis=1),)

    def preprocess(self, item: str) -> Any:
        return torch.ones(len(item))

    def forward(self, batch: Any) -> Any:
        return batch


class WarmText(Text):
    def warmup_items(self) -> list[str]:
        return ["a", "abc"]


def test_inputs_that_cannot_be_made_up_are_not_warmed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model = model_of(Text())

    warm(model, CpuPlacement(), Readiness())

    assert plan_warmup(model.stages, model.signature, model.handler) == []
    assert "warm-up skipped" in caplog.text


def test_a_handler_s_own_items_are_repeated_to_fill_a_batch() -> None:
    model = model_of(WarmText(), (1, 4, 8))

    batches = [b.make() for b in plan_warmup(model.stages, model.signature, model.handler)]

    assert [tuple(batch.shape) for batch in batches] == [(8, 3), (4, 3), (1, 1)]


def test_items_without_preprocess_are_a_list() -> None:
    class Plain(WarmText):
        preprocess = None  # type: ignore[assignment]

    model = model_of(Plain(), (3, 8))

    assert plan_warmup(model.stages, model.signature, model.handler)[1].make() == ["a", "abc", "a"]


def test_progress_counts_batches() -> None:
    seen: list[str] = []

    class Spy(Readiness):
        def progress(self, reason: str) -> None:
            seen.append(reason)

    warm(model_of(Adder(), (4, 8)), CpuPlacement(), Spy())

    assert seen == ["warming up 0 of 2", "warming up 1 of 2", "warming up 2 of 2"]


class Broken(Adder):
    error: Exception = RuntimeError("oh")

    def forward(self, batch: Any) -> Any:
        raise self.error


def test_a_model_that_fails_on_what_callers_send_does_not_start() -> None:
    with pytest.raises(HandlerFailed, match="warm-up with 8 rows failed: RuntimeError: oh"):
        warm(model_of(Broken()), CpuPlacement(), Readiness())


def test_a_batch_that_does_not_fit_is_told_with_its_size() -> None:
    class Huge(Broken):
        error = torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(LoadError, match=r"8 rows does not fit.*SHOAL_BATCHING_MAX_BATCH_SIZE"):
        warm(model_of(Huge()), CpuPlacement(), Readiness())


def test_a_failure_on_made_up_shapes_proves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Open(Broken):
        inputs = (TensorSpec("x", "FP32", [-1, -1]),)

    warm(model_of(Open()), CpuPlacement(), Readiness())

    assert "warm-up with made-up shapes failed rows=8" in caplog.text


def test_what_forwards_took_is_told_smallest_first() -> None:
    measured = warm(model_of(Adder(), (4, 8)), CpuPlacement(), Readiness())

    assert [rows for rows, _ in measured] == [4, 8]
    assert all(seconds > 0 for _, seconds in measured)


def test_without_warm_up_nothing_is_told() -> None:
    assert warm(model_of(Text()), CpuPlacement(), Readiness()) == ()
