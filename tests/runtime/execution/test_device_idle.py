"""Time that a device is idle between batches, in virtual time, and batches that fail."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_runtime.execution.executor import Executor
from shoal_runtime.execution.stream_placement import StreamPlacement
from tests.runtime.fake_device import DeviceFault, FakeDevice, FakeEvent, Latencies, TimedSlots

MAX_IDLE = 0.01
"""Share of the time from the first kernel to the last."""
CALLS = 16
"""At least the calls with which a batch is launched."""

SEEDS = st.integers(0, 1000)
LATENCIES = st.builds(Latencies, launch_s=st.floats(1e-6, 2e-5), copy_s=st.floats(0, 2e-3), wake_s=st.floats(0, 5e-5))


class Outcome(Enum):
    FINE = "fine"
    RAISES_BEFORE = "the model raises before its kernel"
    RAISES_AFTER = "the model raises after its kernel"
    FAULT = "the kernel fails"


@dataclass
class Batch:
    number: float
    kernel_s: float
    outcome: Outcome = Outcome.FINE
    ready_s: float = 0.0
    """When it was in the device's memory."""


class Model:
    """Doubles its input in one kernel."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.batch = Batch(0, 0)

    def forward(self, inputs: Any) -> Any:
        outcome = self.batch.outcome
        if outcome is Outcome.RAISES_BEFORE:
            raise ValueError(outcome)

        def compute(tensor: torch.Tensor) -> torch.Tensor:
            if outcome is Outcome.FAULT:
                raise DeviceFault(outcome)
            return tensor * 2

        output = self.device.kernel(compute, inputs["x"], self.batch.kernel_s)
        if outcome is Outcome.RAISES_AFTER:
            raise ValueError(outcome)
        return output


def run_all(device: FakeDevice, batches: Sequence[Batch], *, graphs: bool) -> list[Any]:
    """Run all batches at once, each behind the one before; return their first numbers and errors in order."""
    placement, model = StreamPlacement(device, graphs=graphs), Model(device)
    executor = Executor(partial(TimedSlots, device))
    if graphs:
        with placement.active():
            placement.warm(model.forward, placement.stage({"x": torch.zeros(2, 3)}))
    device.kernel_spans.clear()

    async def run(batch: Batch) -> float:
        staged = placement.stage({"x": torch.full((2, 3), batch.number)})
        staged_s, copied = device.host_s, cast(FakeEvent, staged.copied)

        def launch() -> Any:
            device.reach(staged_s)
            model.batch = batch
            with placement.active():
                return placement.fetch([placement.forward(model.forward, staged)])

        [result] = await executor.launch(launch)
        batch.ready_s = copied.at_s
        assert (result == result[0, 0]).all()
        return float(result[0, 0])

    async def run_each() -> list[Any]:
        async with asyncio.timeout(20):
            return list(await asyncio.gather(*map(run, batches), return_exceptions=True))

    try:
        return asyncio.run(run_each())
    finally:
        assert executor.stop(10)
        device.stop()


@settings(deadline=None, max_examples=60, print_blob=True)
@given(LATENCIES, st.lists(st.floats(0, 1e-2), min_size=3, max_size=12), st.booleans(), SEEDS)
def test_the_device_is_busy_while_batches_wait(
    latencies: Latencies, extra_s: list[float], graphs: bool, seed: int
) -> None:
    # While one batch computes, the results of the one before are copied and the next one is launched.
    least_s = latencies.copy_s + latencies.wake_s + CALLS * latencies.launch_s
    batches = [Batch(number, least_s + more_s) for number, more_s in enumerate(extra_s)]
    device = FakeDevice(seed, latencies)

    results = run_all(device, batches, graphs=graphs)

    assert results == [2 * batch.number for batch in batches]
    assert device.shared_buffers == 0
    spans = device.kernel_spans
    idle_s = sum(
        max(0.0, start_s - max(end_s, batch.ready_s))
        for ((_, end_s), (start_s, _)), batch in zip(pairwise(spans), batches[1:], strict=True)
    )
    assert idle_s < MAX_IDLE * (spans[-1][1] - spans[0][0])


@settings(deadline=None, max_examples=60, print_blob=True)
@given(
    LATENCIES,
    st.lists(st.tuples(st.floats(0, 1e-2), st.sampled_from(Outcome)), min_size=1, max_size=12),
    st.booleans(),
    SEEDS,
)
def test_a_batch_that_fails_blocks_no_other_batch(
    latencies: Latencies, drawn: list[tuple[float, Outcome]], graphs: bool, seed: int
) -> None:
    batches = [Batch(number, kernel_s, outcome) for number, (kernel_s, outcome) in enumerate(drawn)]
    device = FakeDevice(seed, latencies)

    results = run_all(device, batches, graphs=graphs)

    assert device.shared_buffers == 0
    lost = any(batch.outcome is Outcome.FAULT for batch in batches)
    for batch, result in zip(batches, results, strict=True):
        if isinstance(result, float):
            assert batch.outcome is Outcome.FINE
            assert result == 2 * batch.number
        else:
            # After a fault of the device, every call fails.
            assert isinstance(result, DeviceFault if batch.outcome is Outcome.FAULT else (DeviceFault, ValueError))
            assert lost or batch.outcome is not Outcome.FINE
