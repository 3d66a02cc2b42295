"""Staging, streams and graphs; what needs a device is marked `gpu`."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from shoal_runtime.errors import DeviceLost, OutOfMemory
from shoal_runtime.execution.cuda import CudaPlacement, GraphCache, StagingPool, batch_form
from tests.runtime.fakes import Adder, Bench

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Host:
    def __init__(self) -> None:
        self.allocated: list[int] = []

    def __call__(self, size: int) -> torch.Tensor:
        self.allocated.append(size)
        return torch.zeros(size, dtype=torch.uint8)


class Copy:
    waited = False

    def synchronize(self) -> None:
        self.waited = True


def test_staging_memory_has_the_tensor_s_form() -> None:
    pool = StagingPool(Host())

    for like in (torch.ones(3, 5), torch.ones(2, dtype=torch.int64), torch.ones(0, 4)):
        view, buffer = pool.acquire(like)
        view.copy_(like)
        assert torch.equal(view, like)
        pool.release(buffer)


def test_staging_memory_is_reused_for_sizes_alike() -> None:
    host = Host()
    pool = StagingPool(host)

    for rows in (30, 32, 31):
        _, buffer = pool.acquire(torch.ones(rows, 16))
        pool.release(buffer)

    assert host.allocated == [2048]


def test_a_buffer_in_use_is_not_handed_out_again() -> None:
    host = Host()
    pool = StagingPool(host)

    first, second = pool.acquire(torch.ones(4)), pool.acquire(torch.ones(4))

    assert first[0].data_ptr() != second[0].data_ptr()
    assert host.allocated == [16, 16]


def test_a_buffer_waits_for_the_copy_that_used_it() -> None:
    pool, copy = StagingPool(Host()), Copy()
    _, buffer = pool.acquire(torch.ones(4))
    pool.release(buffer, copy)
    assert not copy.waited

    pool.acquire(torch.ones(4))

    assert copy.waited


class Recorded:
    def __init__(self) -> None:
        self.replayed: list[list[tuple[int, ...]]] = []

    def replay(self, tensors: list[torch.Tensor]) -> Any:
        self.replayed.append([tuple(t.shape) for t in tensors])
        return "replayed"


def test_a_captured_form_is_replayed_and_others_run_eagerly() -> None:
    graph = Recorded()
    cache = GraphCache(lambda function, batch: graph)
    cache.add(lambda batch: None, {"x": torch.ones(4, 2)})

    assert cache.run(lambda batch: "eager", {"x": torch.zeros(4, 2)}) == "replayed"
    assert graph.replayed == [[(4, 2)]]
    for other in (
        {"x": torch.ones(3, 2)},
        {"x": torch.ones(4, 2, dtype=torch.float64)},
        {"y": torch.ones(4, 2)},
        torch.ones(4, 2),
        ["text"],
        {},
    ):
        assert cache.run(lambda batch: "eager", other) == "eager"


def test_a_form_is_captured_once() -> None:
    captured: list[Any] = []

    def capture(function: Callable[[Any], Any], batch: Any) -> Recorded:
        captured.append(batch)
        return Recorded()

    cache = GraphCache(capture)
    for _ in range(2):
        cache.add(lambda batch: None, torch.ones(2))
    cache.add(lambda batch: None, ["text"])

    assert len(captured) == 1


def test_a_model_that_cannot_be_captured_runs_eagerly_and_is_not_captured_again() -> None:
    asked: list[Any] = []

    def capture(function: Callable[[Any], Any], batch: Any) -> Recorded | None:
        asked.append(batch)
        return Recorded() if len(asked) == 1 else None

    cache = GraphCache(capture)
    for rows in (3, 2, 1):
        cache.add(lambda batch: None, torch.ones(rows))

    assert len(asked) == 2
    assert cache.run(lambda batch: "eager", torch.ones(3)) == "eager"


def test_only_tensors_have_a_form() -> None:
    assert batch_form([torch.ones(1), "a"]) is None
    assert batch_form({}) is None
    assert batch_form({"a": torch.ones(1)}) != batch_form({"b": torch.ones(1)})


class Linear(Adder):
    """On the device, with no Python left in forward."""

    def __init__(self) -> None:
        self.calls = 0

    def forward(self, batch: Mapping[str, Any]) -> Any:
        self.calls += 1
        return {"y": batch["x"] * 2 + 1}


X = np.arange(6, dtype=np.float32).reshape(3, 2)


def cuda(*, graphs: bool) -> CudaPlacement:
    return CudaPlacement(torch.device("cuda:0"), graphs=graphs)


@pytest.mark.gpu
@needs_cuda
def test_a_batch_goes_to_the_device_and_back() -> None:
    with Bench(Linear(), placement=cuda(graphs=False)) as bench:
        for _ in range(20):
            assert bench.run({"x": X}).outputs["y"].tolist() == (X * 2 + 1).tolist()


@pytest.mark.gpu
@needs_cuda
def test_a_graph_replays_batches_of_a_warmed_size() -> None:
    model, placement = Linear(), cuda(graphs=True)
    with Bench(model, placement=placement, allowed_batch_sizes=(4, 8)) as bench:
        for rows in (8, 4):
            staged = placement.stage({"x": torch.zeros(rows, 2)})
            with placement.active():
                placement.warm(model.forward, staged)
        calls = model.calls
        for offset in range(20):
            x = X + np.float32(offset)
            assert bench.run({"x": x}).outputs["y"].tolist() == (x * 2 + 1).tolist()

    assert model.calls == calls


@pytest.mark.gpu
@needs_cuda
def test_a_model_that_synchronizes_falls_back_to_eager() -> None:
    class Syncing(Linear):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            return {"y": batch["x"] + float(batch["x"].sum().item() * 0 + 1)}

    model, placement = Syncing(), cuda(graphs=True)
    with Bench(model, placement=placement, allowed_batch_sizes=(4, 8)) as bench:
        staged = placement.stage({"x": torch.zeros(4, 2)})
        with placement.active():
            placement.warm(model.forward, staged)

        assert bench.run({"x": X}).outputs["y"].tolist() == (X + 1).tolist()


@pytest.mark.gpu
@needs_cuda
def test_out_of_memory_is_not_sticky() -> None:
    class Hungry(Linear):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            if batch["x"][0, 0] < 0:
                torch.empty(2**50, dtype=torch.uint8, device="cuda")
            return super().forward(batch)

    with Bench(Hungry(), placement=cuda(graphs=False)) as bench:
        with pytest.raises(OutOfMemory):
            bench.run({"x": -X - 1})

        assert bench.run({"x": X}).outputs["y"].tolist() == (X * 2 + 1).tolist()
        assert bench.lost == []


@pytest.mark.gpu
@needs_cuda
@pytest.mark.integration
def test_a_sticky_error_loses_the_device() -> None:
    """In a process of its own: the error stays in its CUDA context for good."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_lose_the_device) == ["DeviceLost", "1 reason"]


def _lose_the_device() -> list[str]:
    class Asserting(Linear):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            torch._assert_async((batch["x"] > 1e9).all())
            return super().forward(batch)

    bench = Bench(Asserting(), placement=cuda(graphs=False))
    try:
        bench.run({"x": X})
    except DeviceLost as error:
        return [type(error).__name__, f"{len(bench.lost)} reason"]
    return ["nothing"]


@pytest.mark.gpu
@needs_cuda
def test_a_device_reports_how_much_of_its_memory_is_in_use() -> None:
    placement = cuda(graphs=False)
    before = placement.memory()
    held = torch.empty(2**28, dtype=torch.uint8, device=placement.device)
    after = placement.memory()

    assert before is not None
    assert after is not None
    assert 0 < before[0] < before[1] == after[1]
    assert after[0] - before[0] >= held.numel() // 2
