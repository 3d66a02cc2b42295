"""The Lease between two operators: one writes, and the other follows within 20 seconds."""

import asyncio
import contextlib
import datetime

import pytest

from shoal_operator.children.observation import Key
from shoal_operator.errors import ApiError
from shoal_operator.loop.leadership import Leadership
from shoal_operator.loop.lease import Election
from shoal_schema.fields.declaring import Json
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


class SlowLink(Link):
    """A way to the cluster on which each answer takes its time, and the first one, with its handshake, twice that."""

    def __init__(self, cluster: FakeCluster, latency_s: float) -> None:
        super().__init__(cluster)
        self._latency_s = latency_s
        self._connected = False

    async def read_lease(self, key: Key) -> Json | None:
        await self._pass()
        return await super().read_lease(key)

    async def write_lease(self, key: Key, body: Json) -> Json:
        await self._pass()
        return await super().write_lease(key, body)

    async def _pass(self) -> None:
        handshake_s = 0.0 if self._connected else self._latency_s
        self._connected = False  # a request that is given up takes its connection with it
        await asyncio.sleep(handshake_s + self._latency_s)
        self._connected = True


class Candidate:
    """An operator that notes when it may work."""

    def __init__(self, name: str, cluster: FakeCluster, latency_s: float = 0.0) -> None:
        self.leadership = Leadership(
            Election(name), "default", clock, lambda: EPOCH + datetime.timedelta(seconds=clock())
        )
        self.link = SlowLink(cluster, latency_s) if latency_s else Link(cluster)
        self.working = False
        self.started: list[float] = []
        self.task = asyncio.ensure_future(self.leadership.lead(self.link, self.start))  # type: ignore[arg-type]  # the Lease alone

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


@pytest.mark.parametrize("latency_s", [1.0, 2.0, 3.0, 4.0])
def test_an_api_server_that_is_slow_to_answer_is_led_without_a_gap(latency_s: float) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        one = Candidate("one", cluster, latency_s)
        await asyncio.sleep(5 * latency_s)
        for _ in range(600):
            await asyncio.sleep(0.1)
            assert one.leadership.may_write()
        assert len(one.started) == 1
        await one.stop()

    run(main())


def test_a_slow_api_server_is_reported_goodbye_too() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        one = Candidate("one", cluster, 2.0)
        await asyncio.sleep(30)
        await one.stop()
        assert cluster.lease is not None
        assert cluster.lease["spec"]["holderIdentity"] == ""

    run(main())


@pytest.mark.parametrize("latency_s", [2.0, 4.0])
def test_of_two_operators_of_a_slow_api_server_one_works(latency_s: float) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        one, two = Candidate("one", cluster, latency_s), Candidate("two", cluster, latency_s)
        for _ in range(600):
            await asyncio.sleep(0.1)
            assert not (one.leadership.may_write() and two.leadership.may_write())
        assert len(one.started) + len(two.started) == 1
        await one.stop()
        await two.stop()

    run(main())


def test_a_renewal_whose_answer_was_lost_is_no_reason_to_stop() -> None:
    async def main() -> None:
        one = Candidate("one", FakeCluster())
        await asyncio.sleep(10)
        one.link.conflicts = 1  # what was stored meanwhile is our own renewal
        await asyncio.sleep(30)
        assert one.working
        assert len(one.started) == 1
        await one.stop()

    run(main())


def test_a_lease_that_another_took_meanwhile_ends_the_work_at_once() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        one = Candidate("one", cluster)
        await asyncio.sleep(10)
        assert one.working
        assert cluster.lease is not None
        cluster.lease["spec"]["holderIdentity"] = "another"
        cluster.lease["metadata"]["resourceVersion"] = "another's"
        await asyncio.sleep(3)
        assert not one.working
        assert not one.leadership.may_write()
        await one.stop()

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
