from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from shoal_runtime import ItemError, PaddingRule, TensorSpec
from shoal_runtime.errors import LoadError
from shoal_runtime.execution.machine import choose_machine
from shoal_runtime.execution.torch_placement import CpuPlacement
from shoal_runtime.formats.module import ModuleHandler
from shoal_runtime.handlers.base import methods_of
from shoal_runtime.importing import HandlerFailed
from shoal_runtime.loading import Model
from shoal_runtime.readiness import Readiness
from shoal_runtime.startup.starting import warm
from shoal_runtime.startup.warmup import plan_warmup
from shoal_runtime.tensors.torch_tensors import TORCH
from shoal_schema.resource.runtime import RuntimeSpec
from tests.runtime.fakes import Adder, signature_of


def model_of(handler: Any, sizes: Sequence[int] = ()) -> Model:
    signature = signature_of(handler, allowed_batch_sizes=sizes)
    return Model(
        "m", "p", handler, methods_of(handler), signature, choose_machine(RuntimeSpec(), torch=True), graphs=False
    )


def shapes(handler: Any, sizes: Sequence[int] = ()) -> list[Any]:
    model = model_of(handler, sizes)
    made = [batch.make() for batch in plan_warmup(model.stages, model.signature, handler, TORCH)]
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


def test_inputs_that_cannot_be_generated_are_not_warmed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model = model_of(Text())

    warm(model, CpuPlacement(), Readiness())

    assert plan_warmup(model.stages, model.signature, model.handler, TORCH) == []
    assert "event=warmup_skipped" in caplog.text


def test_a_handler_s_own_items_are_repeated_to_fill_a_batch() -> None:
    model = model_of(WarmText(), (1, 4, 8))

    batches = [b.make() for b in plan_warmup(model.stages, model.signature, model.handler, TORCH)]

    assert [tuple(batch.shape) for batch in batches] == [(8, 3), (4, 3), (1, 1)]


def test_items_without_preprocess_are_a_list() -> None:
    class Plain(WarmText):
        preprocess = None  # type: ignore[assignment]

    model = model_of(Plain(), (3, 8))

    assert plan_warmup(model.stages, model.signature, model.handler, TORCH)[1].make() == ["a", "abc", "a"]


class Given(Adder):
    """Takes tensors, and has samples of its own."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def warmup_items(self) -> list[Any]:
        return list(self.items)


@pytest.mark.parametrize("item", [[1, 2], np.array([1, 2], np.float32), torch.tensor([1.0, 2.0]), np.array([1, 2])])
def test_items_without_preprocess_are_rows_of_tensors(item: Any) -> None:
    model = model_of(Given(item, [3, 4]), (3,))

    [batch] = [each.make() for each in plan_warmup(model.stages, model.signature, model.handler, TORCH)]

    assert batch["x"].dtype == torch.float32
    assert batch["x"].tolist() == [[1, 2], [3, 4], [1, 2]]
    assert warm(model, CpuPlacement(), Readiness())


def test_items_of_several_inputs_are_dicts() -> None:
    class Pair(Given):
        inputs = (  # type: ignore[assignment]
            TensorSpec("x", "FP32", [-1, 2]),
            TensorSpec("t", "BYTES", [-1], content_type="text/plain"),
            TensorSpec("o", "INT64", [-1], optional=True),
        )

    model = model_of(Pair({"x": [1, 2], "t": "a"}), (2,))

    [batch] = [each.make() for each in plan_warmup(model.stages, model.signature, model.handler, TORCH)]

    assert batch["x"].shape == (2, 2)
    assert batch["t"] == ["a", "a"]
    assert "o" not in batch
    for odd in ([1, 2], {"x": [1, 2]}):
        with pytest.raises(HandlerFailed, match=r"warmup_items.*dict of values by input"):
            warm(model_of(Pair(odd)), CpuPlacement(), Readiness())


@pytest.mark.parametrize("items", [([[1, 2]],), ([1, 2, 3],), ({"x": [1, 2]},), ([1, 2], [3]), ("ab",)], ids=str)
def test_items_that_are_no_rows_are_rejected_with_the_rule(items: Any) -> None:
    with pytest.raises(HandlerFailed, match="an item is one row"):
        warm(model_of(Given(*items)), CpuPlacement(), Readiness())


def test_no_items_are_rejected() -> None:
    with pytest.raises(HandlerFailed, match="no item"):
        warm(model_of(Given()), CpuPlacement(), Readiness())


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


def test_a_model_that_fails_on_what_clients_send_does_not_start() -> None:
    with pytest.raises(HandlerFailed, match="warm-up with 8 rows failed: RuntimeError: oh"):
        warm(model_of(Broken()), CpuPlacement(), Readiness())


def test_a_batch_that_does_not_fit_is_reported_with_its_size() -> None:
    class Huge(Broken):
        error = torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(LoadError, match=r"8 rows does not fit.*SHOAL_BATCHING_MAX_BATCH_SIZE"):
        warm(model_of(Huge()), CpuPlacement(), Readiness())


def test_a_failure_at_one_generated_length_proves_nothing_and_is_reported_in_its_own_format(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Open(Adder):
        inputs = (TensorSpec("x", "FP32", [-1, -1]),)

        def forward(self, batch: Any) -> Any:
            raise ValueError(f"not {batch['x'].shape[1]} long")

    warm(model_of(Open()), CpuPlacement(), Readiness())

    assert "event=warmup_with_made_up_inputs_failed rows=8 error=ValueError: not 1 long; " in caplog.text


def test_a_model_that_fails_alike_at_every_length_does_not_start() -> None:
    class Open(Broken):
        inputs = (TensorSpec("x", "FP32", [-1, -1]),)

    with pytest.raises(HandlerFailed, match="warm-up with 8 rows failed: RuntimeError: oh"):
        warm(model_of(Open()), CpuPlacement(), Readiness())


def test_what_forwards_took_is_reported_smallest_first() -> None:
    measured = warm(model_of(Adder(), (4, 8)), CpuPlacement(), Readiness())

    assert [rows for rows, _ in measured] == [4, 8]
    assert all(seconds > 0 for _, seconds in measured)


def test_sizes_between_the_ends_are_measured_too() -> None:
    assert [rows for rows, _ in warm(model_of(Adder()), CpuPlacement(), Readiness())] == [1, 2, 4, 8]


class OnlyEnds(Adder):
    """Fails batches of two to seven rows."""

    def forward(self, batch: Any) -> Any:
        if 1 < len(batch["x"]) < 8:
            raise RuntimeError("between")
        return super().forward(batch)


def test_what_fails_while_it_is_only_measured_keeps_no_model_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    assert [rows for rows, _ in warm(model_of(OnlyEnds()), CpuPlacement(), Readiness())] == [1, 8]
    assert "event=measuring_failed rows=2 error=RuntimeError: between" in caplog.text


class Slow(CpuPlacement):
    """Says that each batch takes two seconds."""

    def measure(self, function: Any, batch: Any) -> tuple[float, Any]:
        return 2.0, super().measure(function, batch)[1]


def test_measuring_ends_before_it_takes_too_long() -> None:
    assert [rows for rows, _ in warm(model_of(Adder()), Slow(), Readiness())] == [1, 8]


def test_without_warm_up_nothing_is_reported() -> None:
    assert warm(model_of(Text()), CpuPlacement(), Readiness()) == ()


class Returning(Adder):
    """Returns a fixed result for any batch."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def forward(self, batch: Any) -> Any:
        return self.make(len(batch["x"]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda rows: 1.0, "returned float for output y", id="number"),
        pytest.param(lambda rows: torch.tensor(1.0), "output y has shape \\[\\]", id="scalar"),
        pytest.param(lambda rows: torch.ones(1, 2), "1 rows of y for a batch of 8", id="one row for all"),
        pytest.param(lambda rows: torch.ones(rows, 3), "shape \\[8, 3\\]", id="shape"),
        pytest.param(lambda rows: torch.ones(rows, 2).squeeze(), "shape \\[2\\]|shape \\[\\]", id="squeezed"),
        pytest.param(lambda rows: torch.ones(rows, 2, 1), "shape \\[8, 2, 1\\]", id="rank"),
        pytest.param(lambda rows: {"z": torch.ones(rows, 2)}, "output z", id="name"),
        pytest.param(lambda rows: {}, "returned nothing for output y", id="missing"),
        pytest.param(lambda rows: {"y": torch.ones(rows, 2), "z": torch.ones(rows)}, "output z", id="extra"),
        pytest.param(lambda rows: torch.ones(rows, 2) * 1j, "complex64", id="datatype"),
        pytest.param(lambda rows: [torch.ones(2)] * (rows - 1), "7 rows of results for a batch of 8", id="short list"),
        pytest.param(lambda rows: None, "returned NoneType for output y", id="nothing"),
    ],
)
def test_a_model_that_breaks_its_signature_does_not_start(make: Callable[[int], Any], message: str) -> None:
    with pytest.raises(LoadError, match=message) as refused:
        warm(model_of(Returning(make)), CpuPlacement(), Readiness())

    assert "warm-up with" in str(refused.value)
    assert "Correct its outputs, or their declaration" in str(refused.value)


def test_what_is_wrong_with_small_batches_alone_is_found() -> None:
    def squeezed(rows: int) -> Any:
        return torch.ones(rows, 2).squeeze(0)

    with pytest.raises(LoadError, match=r"warm-up with 1 rows found.*shape \[2\]"):
        warm(model_of(Returning(squeezed)), CpuPlacement(), Readiness())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda rows: [torch.ones(3)] * rows, "a row of output y has shape \\[3\\]", id="shape"),
        pytest.param(lambda rows: [["a", "b"]] * rows, "FP32.*<U1", id="texts"),
        pytest.param(lambda rows: [{"y": [1, 2], "z": 3}] * rows, "output z", id="extra"),
        pytest.param(lambda rows: [RuntimeError("oh")] * rows, "RuntimeError: oh", id="raised"),
    ],
)
def test_rows_that_break_the_signature_do_not_start(make: Callable[[int], Any], message: str) -> None:
    with pytest.raises(HandlerFailed, match=f"warm-up with 8 rows failed: .*{message}.*offer warmup_items"):
        warm(model_of(Returning(make)), CpuPlacement(), Readiness())


class Scored(Text):
    """Returns a fixed result of postprocess for any text."""

    def __init__(self, postprocess: Callable[[Any], Any]) -> None:
        self.postprocess = postprocess

    def forward(self, batch: Any) -> Any:
        return {"sum": batch.sum(1), "anything": batch}

    def warmup_items(self) -> list[str]:
        return ["a", "abc"]


def refuse(row: Any) -> int:
    raise ItemError("nothing found in it")


@pytest.mark.parametrize(
    ("postprocess", "message"),
    [
        (lambda row: 1.5, "INT64.*float64, such as 1.5"),
        (lambda row: {"n": 1, "m": 2}, "output m.*"),
        (lambda row: row["missing"], "KeyError: 'missing'"),
    ],
)
def test_a_handler_s_own_samples_go_through_all_its_stages(postprocess: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(HandlerFailed, match=f"{message}.*warmup_items"):
        warm(model_of(Scored(postprocess)), CpuPlacement(), Readiness())


@pytest.mark.parametrize("postprocess", [lambda row: int(row["sum"]), refuse], ids=["answers", "refuses"])
def test_samples_that_get_responses_or_rejected_as_bad_start(postprocess: Callable[[Any], Any]) -> None:
    assert len(warm(model_of(Scored(postprocess)), CpuPlacement(), Readiness())) == 4


class Halves(Adder):
    """Takes numbers, and has a preprocess."""

    inputs = (TensorSpec("x", "FP32", [-1, 4]),)

    def __init__(self, result: Callable[[Any], Any], *, takes_zeros: bool = True) -> None:
        self.result = result
        self.takes_zeros = takes_zeros

    def preprocess(self, row: Any) -> Any:
        if not (self.takes_zeros or row.any()):
            raise ValueError("zeros")
        return row[:2]

    def forward(self, batch: Any) -> Any:
        return self.result(batch)


def test_zeros_go_through_preprocess_where_there_are_no_samples() -> None:
    with pytest.raises(LoadError, match="output y"):
        warm(model_of(Halves(lambda batch: batch.sum())), CpuPlacement(), Readiness())

    assert warm(model_of(Halves(lambda batch: batch)), CpuPlacement(), Readiness()) == ()


def test_a_preprocess_that_takes_no_zeros_can_still_be_served(caplog: pytest.LogCaptureFixture) -> None:
    warm(model_of(Halves(lambda batch: batch, takes_zeros=False)), CpuPlacement(), Readiness())

    assert "event=warmup_with_made_up_inputs_failed rows=8" in caplog.text


class OpenSize(Returning):
    inputs = (TensorSpec("x", "FP32", [-1, -1]),)


def test_generated_shapes_prove_that_there_are_no_rows_but_no_other_shape(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LoadError, match="output y"):
        warm(model_of(OpenSize(lambda rows: torch.tensor(1.0))), CpuPlacement(), Readiness())

    warm(model_of(OpenSize(lambda rows: torch.ones(rows, 1))), CpuPlacement(), Readiness())
    assert "event=warmup_outputs_doubtful rows=8" in caplog.text


def test_an_archive_s_other_outputs_are_left_out() -> None:
    specs = (TensorSpec("y", "FP32", [-1, 2]),)

    def module(x: Any) -> Any:
        return {"y": x + 1, "hidden": x}

    handler = ModuleHandler(module, Adder.inputs, specs)

    assert len(warm(model_of(handler), CpuPlacement(), Readiness())) == 4


def test_samples_of_different_lengths_do_not_keep_a_model_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    class Spelled(Scored):
        outputs = (TensorSpec("n", "INT64", [-1, -1]),)

        def forward(self, batch: Any) -> Any:
            return batch

    lengths = iter([1, 3, 1, 3, 1, 3, 1, 3, 1])
    warm(model_of(Spelled(lambda row: [1] * next(lengths))), CpuPlacement(), Readiness())

    assert "[[1], [3]]" in caplog.text
