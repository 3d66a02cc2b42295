"""Batches on a CUDA device."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from shoal_runtime import TensorSpec
from shoal_runtime.errors import DeviceLost, OutOfMemory
from shoal_runtime.execution.cuda import CONTEXT_BYTES, CudaDevice
from shoal_runtime.execution.machine import choose_machine
from shoal_runtime.execution.stream_placement import StreamPlacement
from shoal_schema.resource.runtime import Device, RuntimeSpec
from tests.runtime.fakes import Adder, Bench

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Linear(Adder):
    """On the device, with no Python left in forward."""

    def __init__(self) -> None:
        self.calls = 0

    def forward(self, batch: Mapping[str, Any]) -> Any:
        self.calls += 1
        return {"y": batch["x"] * 2 + 1}


X = np.arange(6, dtype=np.float32).reshape(3, 2)


def cuda(*, graphs: bool) -> StreamPlacement:
    return StreamPlacement(CudaDevice(torch.device("cuda:0")), graphs=graphs)


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


class Network:
    """Layers of convolutions and matrices, heavy enough that several batches are queued on the device."""

    inputs = (TensorSpec("x", "FP32", [-1, 3, 32, 32]),)
    outputs = (TensorSpec("y", "FP32", [-1, 10]),)

    def __init__(self) -> None:
        torch.manual_seed(7)
        layers = [torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1)]
        self.network = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 32 * 32, 10))
        self.network.to("cuda:0").eval()

    def forward(self, batch: Mapping[str, Any]) -> Any:
        return {"y": self.network(batch["x"])}


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("graphs", [False, True])
def test_batches_in_flight_at_once_return_their_own_rows(graphs: bool) -> None:
    """Each batch is of numbers of its own, and its results are those of the network for it alone."""
    random = np.random.default_rng(3)
    batches = [random.standard_normal((1 + at % 8, 3, 32, 32), np.float32) for at in range(200)]
    model, placement = Network(), cuda(graphs=graphs)
    with torch.inference_mode():
        expected = [model.network(torch.from_numpy(x).cuda()).cpu().numpy() for x in batches]
    with Bench(model, placement=placement, allowed_batch_sizes=(2, 4, 8)) as bench:
        for rows in (8, 4, 2):
            staged = placement.stage({"x": torch.zeros(rows, 3, 32, 32)})
            with placement.active():
                placement.warm(model.forward, staged)
        found = asyncio.run(run_all(bench, batches))

    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)


async def run_all(bench: Bench, batches: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
    """Run all batches at once, as far as the pipeline allows, and return their results in order."""
    running = (bench.pipeline.run({"x": x}, len(x)) for x in batches)
    return [each.outputs["y"] for each in await asyncio.gather(*running)]


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
    held = torch.empty(2**28, dtype=torch.uint8, device="cuda:0")
    after = placement.memory()

    assert before is not None
    assert after is not None
    assert 0 < before[0] < before[1] == after[1]
    assert after[0] - before[0] >= held.numel() // 2
    assert CONTEXT_BYTES + held.numel() <= after[2] <= after[0] + CONTEXT_BYTES


@pytest.mark.gpu
@needs_cuda
def test_torch_takes_at_most_the_allowed_share_of_the_memory() -> None:
    size = torch.cuda.mem_get_info("cuda:0")[1]
    choose_machine(RuntimeSpec(device=Device.CUDA, memory_fraction="0.01"), torch=True)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(size // 50, dtype=torch.uint8, device="cuda:0")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, "cuda:0")
