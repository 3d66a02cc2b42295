import asyncio
import ctypes
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from shoal_runtime.errors import DeviceLost, NotReady
from shoal_runtime.execution.executor import MAX_LAUNCHED, MAX_WAITING, Executor
from shoal_runtime.faults import EscapedException


@pytest.fixture
def executor() -> Iterator[Executor]:
    made = Executor()
    yield made
    assert made.stop(5)


def test_calls_run_one_at_a_time_in_order(executor: Executor) -> None:
    order: list[int] = []

    def note(number: int) -> int:
        order.append(number)
        return number

    async def run() -> list[int]:
        calls = [executor.call(partial(note, number)) for number in range(5)]
        return list(await asyncio.gather(*calls))

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]
    assert order == [0, 1, 2, 3, 4]


def test_what_a_call_raises_reaches_its_client(executor: Executor) -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(executor.call(lambda: 1 // 0))


def test_only_a_watched_call_counts_as_busy(executor: Executor) -> None:
    seen = [asyncio.run(executor.call(lambda: executor.busy_since_s, watched=watched)) for watched in (True, False)]

    assert seen[0] is not None
    assert seen[1] is None
    assert executor.busy_since_s is None


def test_abandoning_resolves_every_call_although_the_device_is_stuck(executor: Executor) -> None:
    release = threading.Event()
    stuck = threading.Event()

    def hang() -> None:
        stuck.set()
        release.wait(20)

    async def run() -> list[object]:
        calls = [asyncio.create_task(executor.call(f)) for f in (hang, lambda: 1)]
        await asyncio.to_thread(stuck.wait, 20)
        executor.abandon("gone")
        answers = await asyncio.gather(*calls, return_exceptions=True)
        with pytest.raises(DeviceLost) as refused:
            await executor.call(lambda: 2)
        assert not refused.value.executed
        return list(answers)

    answers = asyncio.run(run())
    release.set()

    assert [type(answer) for answer in answers] == [DeviceLost, DeviceLost]
    # Only the one that hangs may have been executed.
    assert [answer.executed for answer in answers if isinstance(answer, DeviceLost)] == [True, False]


def test_too_many_waiting_calls_are_rejected(executor: Executor) -> None:
    release = threading.Event()

    async def run() -> None:
        calls = [asyncio.create_task(executor.call(lambda: release.wait(20)))]
        calls += [asyncio.create_task(executor.call(lambda: True)) for _ in range(MAX_WAITING - 1)]
        await asyncio.sleep(0)
        with pytest.raises(NotReady, match="waiting already"):
            await executor.call(lambda: True)
        release.set()
        await asyncio.gather(*calls)

    asyncio.run(run())


def test_a_client_that_disconnected_affects_no_other_client(executor: Executor) -> None:
    release = threading.Event()

    async def run() -> str:
        task = asyncio.create_task(executor.call(lambda: release.wait(20)))
        await asyncio.sleep(0)
        task.cancel()
        release.set()
        return await executor.call(lambda: "next")

    assert asyncio.run(run()) == "next"


class Work:
    """Work that the device executes when the test says so."""

    ready = False

    def __init__(self, result: object = None) -> None:
        self.launched = threading.Event()
        self.executed = threading.Event()
        self.result = result

    def launch(self) -> "Work":
        self.launched.set()
        return self

    def wait(self) -> object:
        assert self.executed.wait(20)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def test_the_next_call_is_launched_before_this_one_is_complete(executor: Executor) -> None:
    works = [Work(number) for number in range(MAX_LAUNCHED + 1)]

    async def run() -> list[object]:
        calls = [asyncio.create_task(executor.launch(work.launch)) for work in works]
        for work in works[:MAX_LAUNCHED]:
            assert await asyncio.to_thread(work.launched.wait, 20)
        # The last one has no slot yet.
        assert not works[-1].launched.is_set()
        for work in works:
            assert await asyncio.to_thread(work.launched.wait, 20)
            work.executed.set()
        return list(await asyncio.gather(*calls))

    assert asyncio.run(run()) == [work.result for work in works]


def test_each_launched_call_has_its_own_time_limit(executor: Executor) -> None:
    first, second = Work(), Work()

    async def run() -> None:
        calls = [asyncio.create_task(executor.launch(work.launch)) for work in (first, second)]
        assert await asyncio.to_thread(second.launched.wait, 20)
        began_s = executor.busy_since_s
        first.executed.set()
        await calls[0]
        # The second one began when the first one ended.
        assert began_s is not None
        assert executor.busy_since_s is not None
        assert executor.busy_since_s > began_s
        second.executed.set()
        await calls[1]

    asyncio.run(run())
    assert executor.busy_since_s is None


@pytest.mark.parametrize("fault", [ValueError("v"), SystemExit(1)])
def test_what_the_wait_for_a_result_raises_fails_one_call(executor: Executor, fault: BaseException) -> None:
    works = [Work(fault), Work("next")]

    async def run() -> list[object]:
        for work in works:
            work.executed.set()
        return list(await asyncio.gather(*(executor.launch(work.launch) for work in works), return_exceptions=True))

    failed, following = asyncio.run(run())

    assert isinstance(failed, ValueError | EscapedException)
    assert following == "next"


def test_abandoning_states_which_calls_were_launched(executor: Executor) -> None:
    works = [Work() for _ in range(MAX_LAUNCHED + 1)]

    async def run() -> list[object]:
        calls = [asyncio.create_task(executor.launch(work.launch)) for work in works]
        for work in works[:MAX_LAUNCHED]:
            assert await asyncio.to_thread(work.launched.wait, 20)
        executor.abandon("gone")
        errors = await asyncio.gather(*calls, return_exceptions=True)
        return [error.executed for error in errors if isinstance(error, DeviceLost)]

    executed = asyncio.run(run())
    for work in works:
        work.executed.set()

    assert executed == [True] * MAX_LAUNCHED + [False]
    assert not works[-1].launched.is_set()


@pytest.mark.parametrize("fault", [SystemExit(1), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError()])
def test_nothing_that_a_call_raises_ends_the_thread(executor: Executor, fault: BaseException) -> None:
    def leave() -> None:
        raise fault

    with pytest.raises(EscapedException, match=type(fault).__name__) as escaped:
        asyncio.run(executor.call(leave))

    assert escaped.value.__cause__ is fault
    assert asyncio.run(executor.call(lambda: "next")) == "next"


def test_a_thread_that_ends_all_the_same_states_the_reason_and_leaves_no_call_waiting() -> None:
    executor = Executor()
    reasons: list[str] = []
    executor.on_death = reasons.append

    async def run() -> None:
        ident = await executor.call(threading.get_ident)
        # What a debugger or a runaway library may do: raise in the thread where nothing catches it.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))
        with pytest.raises(DeviceLost, match="the device's thread ended: SystemExit"):
            await executor.call(lambda: "never")

    asyncio.run(run())

    assert executor.stop(5)
    assert reasons == ["the device's thread ended: SystemExit"]
