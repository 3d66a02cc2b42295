"""Batches on a device with streams, which executes work after it was queued."""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_runtime import TensorSpec
from shoal_runtime.errors import BatchError, DeviceLost, ForwardFailed
from shoal_runtime.execution.executor import MAX_LAUNCHED
from shoal_runtime.execution.pipeline import BatchResult
from shoal_runtime.execution.stream_placement import StreamPlacement
from tests.runtime.fake_device import DeviceFault, FakeDevice
from tests.runtime.fakes import Bench

SIZES = (1, 2, 4, 8)


class Doubler:
    """Doubles its input in one kernel; the number 13 is a fault of the device, 99 an exception of the model."""

    inputs = (TensorSpec("x", "FP32", [-1, 2]),)
    outputs = (TensorSpec("y", "FP32", [-1, 2]),)

    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def forward(self, batch: Mapping[str, Any]) -> Any:
        return {"y": self.device.kernel(self.compute, batch["x"])}

    def compute(self, tensor: torch.Tensor) -> torch.Tensor:
        if (tensor == 13).any():
            raise DeviceFault("device-side assert")
        return tensor * 2


@contextmanager
def bench_of(model: Doubler, *, graphs: bool = False) -> Iterator[Bench]:
    placement = StreamPlacement(model.device, graphs=graphs)
    with Bench(model, placement=placement, allowed_batch_sizes=SIZES) as bench:
        if graphs:
            for rows in SIZES:
                staged = placement.stage({"x": torch.zeros(rows, 2)})
                with placement.active():
                    placement.warm(model.forward, staged)
        yield bench
    model.device.stop()


async def run_all(bench: Bench, batches: Sequence[Any]) -> list[BatchResult | BaseException]:
    """Run all batches at once; return their results and errors in order."""
    running = [asyncio.create_task(bench.pipeline.run({"x": batch}, len(batch))) for batch in batches]
    return list(await asyncio.gather(*running, return_exceptions=True))


def filled(rows: int, number: float) -> Any:
    return np.full((rows, 2), number, dtype=np.float32)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.booleans(), st.integers(0, 1000))
def test_each_batch_gets_its_own_results(rows: list[int], graphs: bool, seed: int) -> None:
    batches = [
        filled(count, 1000 + index) + np.arange(count, dtype=np.float32)[:, None] for index, count in enumerate(rows)
    ]
    device = FakeDevice(seed)

    with bench_of(Doubler(device), graphs=graphs) as bench:
        results = asyncio.run(run_all(bench, batches))

    for batch, result in zip(batches, results, strict=True):
        assert isinstance(result, BatchResult)
        np.testing.assert_array_equal(result.outputs["y"], batch * 2)
    assert device.most_queued <= MAX_LAUNCHED
    assert device.graphs == (len(SIZES) if graphs else 0)


def test_the_next_batch_is_queued_before_the_device_has_executed_this_one() -> None:
    class Gated(Doubler):
        """Its first kernel ends only when a second one is queued."""

        forwards = 0
        second_queued = threading.Event()
        idle = False

        def forward(self, batch: Mapping[str, Any]) -> Any:
            output = super().forward(batch)
            self.forwards += 1
            if self.forwards == 2:
                self.second_queued.set()
            return output

        def compute(self, tensor: torch.Tensor) -> torch.Tensor:
            self.idle = self.idle or not self.second_queued.wait(20)
            return super().compute(tensor)

    model = Gated(FakeDevice())
    with bench_of(model) as bench:
        results = asyncio.run(run_all(bench, [filled(8, 1), filled(8, 2)]))

    assert not model.idle
    assert [result.outputs["y"][0, 0] for result in results if isinstance(result, BatchResult)] == [2, 4]


def test_the_time_of_a_forward_excludes_the_wait_for_the_batch_before() -> None:
    with bench_of(Doubler(FakeDevice())) as bench:
        results = asyncio.run(run_all(bench, [filled(8, number) for number in range(6)]))

    assert [result.timings.forward_us for result in results if isinstance(result, BatchResult)] == [1_000_000] * 6


def test_a_model_may_return_the_same_memory_for_each_batch() -> None:
    class Static(Doubler):
        output: torch.Tensor | None = None

        def forward(self, batch: Mapping[str, Any]) -> Any:
            with self.device.writing_to(self.output):
                self.output = self.device.kernel(self.compute, batch["x"])
            return {"y": self.output}

    for seed in range(20):
        with bench_of(Static(FakeDevice(seed))) as bench:
            results = asyncio.run(run_all(bench, [filled(8, number) for number in range(8)]))
        found = [result.outputs["y"][0, 0] for result in results if isinstance(result, BatchResult)]
        assert found == [2 * number for number in range(8)]


@pytest.mark.parametrize("seed", range(10))
def test_a_fault_of_the_device_loses_the_batches_that_were_launched(seed: int) -> None:
    numbers = [1, 2, 13, 4, 5, 6, 7]
    with bench_of(Doubler(FakeDevice(seed))) as bench:
        results = asyncio.run(run_all(bench, [filled(8, number) for number in numbers]))
        lost = list(bench.lost)

    assert lost
    executed = []
    for number, result in zip(numbers, results, strict=True):
        if isinstance(result, BatchResult):
            assert number < 13
            assert result.outputs["y"][0, 0] == 2 * number
        else:
            assert isinstance(result, DeviceLost | BatchError)
            executed.append((number, result.executed))
    assert (13, True) in executed


def test_an_exception_at_the_launch_fails_no_other_batch() -> None:
    class Raising(Doubler):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            if len(batch["x"]) == 4:
                raise ValueError("not this one")
            return super().forward(batch)

    with bench_of(Raising(FakeDevice())) as bench:
        first, second, third = asyncio.run(run_all(bench, [filled(8, 1), filled(4, 2), filled(8, 3)]))

    assert isinstance(first, BatchResult)
    assert isinstance(second, ForwardFailed)
    assert second.executed
    assert isinstance(third, BatchResult)
    assert third.outputs["y"][0, 0] == 6
