"""The Lease between two operators: one writes, and the other follows within 20 seconds."""

import asyncio
import contextlib
import datetime

import pytest

from shoal_operator.api.fields import Json
from shoal_operator.errors import ApiError
from shoal_operator.leadership import Leadership
from shoal_operator.planning.lease import Election
from shoal_operator.planning.observation import Key
from tests.operator.fakes import FakeCluster, clock, run

EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Link:
    """A way to the cluster that can be cut."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.cut = False
        self.conflicts = 0

    async def read_lease(self, key: Key) -> Json | None:
        self._check()
        return await self._cluster.read_lease(key)

    async def write_lease(self, key: Key, body: Json) -> Json:
        self._check()
        if self.conflicts:
            self.conflicts -= 1
            raise ApiError(409, "the object has been modified")
        return await self._cluster.write_lease(key, body)

    def _check(self) -> None:
        if self.cut:
            raise ApiError(0, "cut off")


class Candidate:
    """An operator that notes when it may work."""

    def __init__(self, name: str, cluster: FakeCluster) -> None:
        self.leadership = Leadership(
            Election(name), "default", clock, lambda: EPOCH + datetime.timedelta(seconds=clock())
        )
        self.link = Link(cluster)
        self.working = False
        self.started: list[float] = []
        self.task = asyncio.ensure_future(self.leadership.lead(self.link, self.start))

    def start(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.work())

    async def work(self) -> None:
        self.working = True
        self.started.append(clock())
        try:
            await asyncio.Event().wait()
        finally:
            self.working = False

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    def kill(self) -> None:
        """Leave no time for goodbyes: the Lease stays as it is."""
        self.link.cut = True
        self.task.cancel()


def test_of_two_operators_one_works() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        one, two = Candidate("one", cluster), Candidate("two", cluster)
        for _ in range(60):
            await asyncio.sleep(1)
            assert (one.working, two.working) == (True, False)
            assert not two.leadership.may_write()
        await one.stop()
        await two.stop()

    run(main())


def test_after_a_goodbye_the_other_follows_within_a_retry_period() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        one, two = Candidate("one", cluster), Candidate("two", cluster)
        await asyncio.sleep(10)
        await one.stop()
        stopped_s = clock()
        assert not one.working
        await asyncio.sleep(5)
        assert two.working
        assert two.started[0] - stopped_s <= 2.1
        await two.stop()
        assert cluster.lease is not None
        assert cluster.lease["spec"]["holderIdentity"] == ""

    run(main())


def test_a_renewal_that_lands_late_does_not_keep_the_lease_after_a_goodbye() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        one, two = Candidate("one", cluster), Candidate("two", cluster)
        await asyncio.sleep(10)
        one.link.conflicts = 1
        await one.stop()
        stopped_s = clock()
        await asyncio.sleep(5)
        assert two.started[0] - stopped_s <= 2.1
        await two.stop()

    run(main())


def test_after_a_kill_the_other_follows_within_twenty_seconds() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        one, two = Candidate("one", cluster), Candidate("two", cluster)
        await asyncio.sleep(11)
        killed_s = clock()
        one.kill()
        await asyncio.sleep(30)
        assert 10 < two.started[0] - killed_s < 20
        assert cluster.lease is not None
        assert cluster.lease["spec"]["leaseTransitions"] == 1
        await two.stop()

    run(main())


def test_an_operator_that_is_cut_off_stops_before_the_other_starts_and_works_again_later() -> None:
    async def main() -> None:
        one = Candidate("one", FakeCluster())
        await asyncio.sleep(5)
        assert one.working
        one.link.cut = True
        await asyncio.sleep(8)
        assert one.working
        await asyncio.sleep(5)
        assert not one.working
        assert not one.leadership.may_write()
        one.link.cut = False
        await asyncio.sleep(5)
        assert one.working
        await one.stop()

    run(main())


def test_work_that_fails_ends_the_operator() -> None:
    async def broken() -> None:
        raise RuntimeError("broken")

    async def main() -> None:
        leadership = Leadership(Election("one"), "default", clock, lambda: EPOCH)
        with pytest.raises(RuntimeError, match="broken"):
            await leadership.lead(FakeCluster(), lambda: asyncio.ensure_future(broken()))

    run(main())
