"""The workers: every due key is reconciled, whatever one reconciliation raises."""

import asyncio
import contextlib

import pytest

from shoal_operator.children.observation import Key
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.loop.workers import Workers
from shoal_operator.loop.workqueue import Outcome, WorkQueue
from shoal_operator.metrics import Metrics
from tests.operator.fakes import clock, run

CAT, DOG = Key("default", "cat"), Key("default", "dog")


async def working(reconcile: object, seconds: float, *keys: Key, count: int = 2) -> WorkQueue:
    queue = WorkQueue(resync_s=600)
    workers = Workers(queue, reconcile, clock, Metrics())  # type: ignore[arg-type]  # each test brings its own
    for key in keys:
        workers.mark(key)
    task = asyncio.ensure_future(workers.run(count))
    await asyncio.sleep(seconds)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return queue


def test_service_is_reconciled_again_after_the_resync_period() -> None:
    seen: list[float] = []

    async def reconcile(key: Key) -> Outcome:
        seen.append(clock())
        return Outcome.DONE

    run(working(reconcile, 1300, CAT))

    assert len(seen) == 3
    assert 480 <= seen[1] - seen[0] <= 600


def test_one_services_surprise_does_not_stop_the_others() -> None:
    seen: list[Key] = []

    async def reconcile(key: Key) -> Outcome:
        seen.append(key)
        if key == CAT:
            raise RuntimeError("a surprise")
        return Outcome.DONE

    run(working(reconcile, 0.5, CAT, DOG, count=1))

    assert seen == [CAT, DOG]


@pytest.mark.parametrize(
    "error",
    [
        ApiError(403, "the namespace is being terminated", causes=["NamespaceTerminating"]),
        ApiError(404, 'inferenceservices.serving.shoal.dev "cat" not found'),
        ApiError(409, "uid mismatch: the object specified uid a, and no existing object was found"),
    ],
    ids=lambda error: str(error.status),
)
def test_deletion_during_a_reconciliation_is_no_error(error: ApiError, caplog: pytest.LogCaptureFixture) -> None:
    async def reconcile(key: Key) -> Outcome:
        raise error

    caplog.set_level("INFO", "shoal_operator.loop.workers")
    run(working(reconcile, 0.5, CAT))

    assert {each.levelname for each in caplog.records} == {"INFO"}


def test_all_known_keys_can_be_made_due_at_once() -> None:
    seen: list[Key] = []

    async def reconcile(key: Key) -> Outcome:
        seen.append(key)
        return Outcome.DONE

    async def main() -> None:
        workers = Workers(WorkQueue(resync_s=600), reconcile, clock, Metrics())
        for key in (CAT, DOG):
            workers.mark(key)
        task = asyncio.ensure_future(workers.run(2))
        await asyncio.sleep(1)
        workers.mark_all()
        await asyncio.sleep(1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    run(main())

    assert sorted(seen) == [CAT, CAT, DOG, DOG]


def test_api_errors_are_retried_with_backoff() -> None:
    seen: list[float] = []

    async def reconcile(key: Key) -> Outcome:
        seen.append(clock())
        raise ApiError(503, "later") if len(seen) % 2 else NotLeadingError("no")

    run(working(reconcile, 40, CAT))

    assert 5 <= len(seen) <= 7


def test_service_is_never_reconciled_concurrently() -> None:
    running: set[Key] = set()

    async def main() -> None:
        queue = WorkQueue(resync_s=600)

        async def reconcile(key: Key) -> Outcome:
            assert key not in running
            running.add(key)
            await asyncio.sleep(0.1)
            running.discard(key)
            return Outcome.DONE

        workers = Workers(queue, reconcile, clock, Metrics())
        task = asyncio.ensure_future(workers.run(4))
        for _ in range(50):
            workers.mark(CAT)
            workers.mark(DOG)
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    run(main())


def test_what_a_cancelled_worker_held_is_due_again() -> None:
    async def reconcile(key: Key) -> Outcome:
        await asyncio.Event().wait()
        return Outcome.DONE

    queue = run(working(reconcile, 1, CAT))

    assert queue.next_due_s() is not None
    assert queue.oldest_running_s() is None


@pytest.mark.parametrize("turns", range(6))
def test_a_worker_that_has_just_been_woken_can_be_cancelled(turns: int) -> None:
    async def main() -> None:
        async def reconcile(key: Key) -> Outcome:
            return Outcome.DONE

        workers = Workers(WorkQueue(resync_s=600), reconcile, clock, Metrics())
        task = asyncio.ensure_future(workers.run(1))
        workers.mark(CAT)
        await asyncio.sleep(1)  # it waits for the resync now
        workers.mark(CAT)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()

    run(main())
