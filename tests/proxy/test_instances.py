"""Several runtimes behind one proxy."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal_proxy.batching.batch import make_batch
from shoal_proxy.batching.pending import RequestSlice
from shoal_proxy.dispatch import instances as instances_module
from shoal_proxy.dispatch.exchange import RuntimeLink
from shoal_proxy.dispatch.instances import InstancesLink
from shoal_proxy.errors import NotExecuted, RuntimeUnavailable
from shoal_proxy.observe.metrics import Metrics
from shoal_schema.fields.addresses import Address
from shoal_schema.interfaces.instances import instance_address
from tests.fakes import FakeRuntime, Seen, tensor
from tests.proxy.signatures import request


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (a condition of several objects has no one event)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def instances(folder: Path, *runtimes: FakeRuntime, in_flight: int = 1) -> AsyncIterator[InstancesLink]:
    """Run a link to these runtimes, of which those that are ready have been found."""
    first = Address(path=f"{folder}/s")
    addresses = [instance_address(first, number) for number in range(len(runtimes))]
    for runtime, address in zip(runtimes, addresses, strict=True):
        await runtime.start(address)
    link = InstancesLink([RuntimeLink(each, runtimes[0].name, in_flight=in_flight) for each in addresses])
    watch = asyncio.create_task(link.watch())
    await until(lambda: link.concurrency == in_flight * sum(each.ready for each in runtimes))
    yield link
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    link.close()
    for runtime in runtimes:
        await runtime.stop()


async def send(link: InstancesLink, number: float) -> float:
    """Send a batch of one row; return the first number of its result."""
    pending = request({"x": np.full((1, 4), number, np.float32)})
    batch = make_batch([RequestSlice(pending, 0, 1, pending.inputs)])
    assert link.signature is not None
    sent = await link.exchange(batch, link.signature, Metrics())
    result: Any = sent.result(link.signature)
    return float(result.outputs["y"][0, 0])


def test_batches_are_spread_over_the_runtimes(tmp_path: Path) -> None:
    async def main() -> None:
        runtimes = [FakeRuntime(), FakeRuntime(), FakeRuntime()]
        async with instances(tmp_path, *runtimes) as link:
            for runtime in runtimes:
                runtime.gate.clear()
            sending = [asyncio.create_task(send(link, number)) for number in range(6)]
            await until(lambda: sum(runtime.running for runtime in runtimes) == 6)
            assert [runtime.running for runtime in runtimes] == [2, 2, 2]
            for runtime in runtimes:
                runtime.gate.set()
            assert await asyncio.gather(*sending) == [0, 2, 4, 6, 8, 10]
            # Idle runtimes take turns.
            for number in range(3):
                assert await send(link, number) == 2 * number
            assert [len(runtime.seen) for runtime in runtimes] == [3, 3, 3]

    asyncio.run(main())


def test_a_lost_runtime_fails_only_its_own_batch(tmp_path: Path) -> None:
    async def main() -> None:
        runtimes = [FakeRuntime(), FakeRuntime()]
        async with instances(tmp_path, *runtimes) as link:
            for runtime in runtimes:
                runtime.gate.clear()
            sending = [asyncio.create_task(send(link, number)) for number in (1, 2)]
            await until(lambda: all(runtime.running for runtime in runtimes))
            await runtimes[0].stop()
            runtimes[1].gate.set()
            lost, kept = await asyncio.gather(*sending, return_exceptions=True)

            assert isinstance(lost, RuntimeUnavailable)
            assert kept == 4
            await until(lambda: link.concurrency == 1)
            assert link.ready
            assert link.counts == (1, 2)
            assert link.losses == 1
            assert await send(link, 5) == 10

    asyncio.run(main())


def test_a_stuck_runtime_keeps_its_own_batch_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances_module, "LATE_S", 0.05)

    async def main() -> None:
        stuck, other = FakeRuntime(), FakeRuntime()
        async with instances(tmp_path, stuck, other) as link:
            stuck.gate.clear()
            first = asyncio.create_task(send(link, 1))
            await until(lambda: stuck.running + other.running == 1)
            if other.running:  # runtimes take turns
                stuck, other = other, stuck
            assert await send(link, 2) == 4
            await asyncio.sleep(0.06)
            other.gate.clear()
            sending = [asyncio.create_task(send(link, number)) for number in (3, 4)]
            await until(lambda: other.running == 2)
            assert stuck.running == 1, "the last batch would have waited behind the stuck one"
            other.gate.set()
            assert await asyncio.gather(*sending) == [6, 8]
            stuck.gate.set()
            assert await first == 2

    asyncio.run(main())


def test_batches_of_a_runtime_that_is_not_ready_keep_none_from_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        stuck, other = FakeRuntime(), FakeRuntime()
        async with instances(tmp_path, stuck, other) as link:
            for each in (stuck, other):
                each.gate.clear()
            sending = [asyncio.create_task(send(link, number)) for number in range(4)]
            await until(lambda: stuck.running == other.running == 2)
            changes: list[int] = []
            link.on_change = lambda: changes.append(link.concurrency)
            stuck.ready = False
            await link._instances[0].link.check()
            assert changes == [3], "one of the ready runtime, and two that the other holds"
            other.gate.set()
            stuck.gate.set()
            await asyncio.gather(*sending)
            assert changes[-1] == link.concurrency == 1

    asyncio.run(main())


def test_a_batch_for_a_runtime_that_has_just_ended_runs_on_another_one(tmp_path: Path) -> None:
    async def main() -> None:
        runtimes = [FakeRuntime(), FakeRuntime()]
        async with instances(tmp_path, *runtimes) as link:
            # Without a connection, only a batch finds out that nothing listens.
            (tmp_path / "s").unlink()
            link._instances[0].link.upstream.drop_idle()
            assert link.concurrency == 2
            assert [await send(link, number) for number in range(4)] == [0, 2, 4, 6]
            assert len(runtimes[1].seen) == 4

    asyncio.run(main())


def refuse(seen: Seen) -> tuple[int, dict[str, str], bytes]:
    """Respond as a runtime that is about to end, since one of its forwards took too long."""
    return 503, {"x-shoal-executed": "no"}, b'{"error": "a forward runs longer than 3 s"}'


def test_batches_that_a_runtime_refuses_run_on_another_one(tmp_path: Path) -> None:
    async def main() -> None:
        runtimes = [FakeRuntime(respond=refuse), FakeRuntime()]
        async with instances(tmp_path, *runtimes) as link:
            # Its health check may still succeed, and it has the fewest batches, as it responds at once.
            assert await asyncio.gather(*[send(link, number) for number in range(8)]) == [2 * n for n in range(8)]
            assert runtimes[0].seen
            assert len(runtimes[1].seen) == 8

    asyncio.run(main())


def test_a_runtime_that_refuses_batches_is_unready_until_its_next_health_check(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = FakeRuntime()
        async with instances(tmp_path, runtime) as link:
            runtime.respond, runtime.ready = refuse, False
            with pytest.raises(NotExecuted):
                await send(link, 1)
            assert not link.ready
            assert link.losses == 1

            runtime.respond, runtime.ready = None, True
            await until(lambda: link.ready)
            assert await send(link, 2) == 4

    asyncio.run(main())


@pytest.mark.parametrize(
    "other",
    [
        FakeRuntime(outputs=[tensor("z", "FP32", [-1, 4])], ready=False),
        FakeRuntime(parameters={"precision": "Float16"}, ready=False),
    ],
)
def test_a_runtime_with_another_model_or_precision_gets_no_batch(
    other: FakeRuntime, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with instances(tmp_path, FakeRuntime(), other) as link:
            other.ready = True
            await until(lambda: "instance_not_used" in caplog.text)
            assert [await send(link, number) for number in range(4)] == [0, 2, 4, 6]
            assert other.seen == []
            assert link.concurrency == 1

    asyncio.run(main())


def test_a_runtime_that_measured_other_times_gets_batches(tmp_path: Path) -> None:
    async def main() -> None:
        runtimes = [FakeRuntime(parameters={"forward_us": times}) for times in ("1:10", "1:20")]
        async with instances(tmp_path, *runtimes) as link:
            assert link.concurrency == 2

    asyncio.run(main())


def test_without_a_ready_runtime_the_reason_is_that_of_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        runtimes = [FakeRuntime(ready=False), FakeRuntime(ready=False)]
        async with instances(tmp_path, *runtimes) as link:
            await until(lambda: link.reason == "warming up")
            assert not link.ready
            assert link.signature is None
            assert not link.started.is_set()
            runtimes[1].ready = True
            await until(link.started.is_set)
            assert link.ready
            assert await send(link, 3) == 6

    asyncio.run(main())


@pytest.mark.parametrize(("name", "concurrency"), [("shoal-runtime", 1), ("another", 3)])
def test_only_a_foreign_runtime_executes_batches_concurrently(tmp_path: Path, name: str, concurrency: int) -> None:
    async def main() -> None:
        runtime = FakeRuntime(server_name=name)
        await runtime.start(Address(path=f"{tmp_path}/s"))
        link = RuntimeLink(Address(path=f"{tmp_path}/s"), runtime.name, in_flight=3)
        await link.check()
        assert link.concurrency == concurrency
        link.close()
        await runtime.stop()

    asyncio.run(main())
