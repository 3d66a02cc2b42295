"""The autoscaler's loop: it writes what the law decides, and tells what it heard and when it is blind."""

import asyncio

from shoal_operator.api.fields import Json
from shoal_operator.errors import ApiError
from shoal_operator.load.exposition import Reading
from shoal_operator.load.fleet import Fleet
from shoal_operator.planning.evidence import ScalingState
from shoal_operator.planning.observation import Key
from shoal_operator.scaling import Autoscaler
from tests.operator.fakes import FakeCluster, FakeProxies, clock, run
from tests.operator.samples import MINIMAL, service, with_fields
from tests.operator.worlds import pod

CAT = Key("default", "cat")
POD = "10.0.0.1"
OBJECTIVE = with_fields(MINIMAL, batching__latencyObjectiveMilliseconds=50)
SPEC = with_fields(MINIMAL, scaling={"maxReplicas": 8, "targetQueueDepth": 10})


class World:
    """A service with one ready pod."""

    def __init__(self, cluster: FakeCluster | None = None, spec: Json = SPEC) -> None:
        self.cluster = cluster or FakeCluster()
        self.fleet, self.proxies, self.changed = Fleet(), FakeProxies(), list[Key]()
        self.fleet.see_service(CAT, service(spec))
        self.fleet.see_pod(CAT, pod())
        self.autoscaler = Autoscaler(self.fleet, self.proxies, self.changed.append, clock, window_s=300)

    async def tick(self, rows: int | None, *, attainable: bool | None = None) -> None:
        self.proxies.readings[POD] = Reading(rows, attainable)
        async with asyncio.TaskGroup() as looks:
            self.autoscaler.tick(self.cluster, looks)


def test_load_raises_the_replicas_once() -> None:
    async def main() -> None:
        world = World()
        await world.tick(35)
        await world.tick(35)
        assert world.cluster.scales == [(CAT, 4)]
        assert world.autoscaler.state(CAT) is ScalingState.FOLLOWING
        assert world.changed == [CAT]

    run(main())


def test_replicas_come_down_after_five_quiet_minutes() -> None:
    async def main() -> None:
        world = World()
        await world.tick(35)
        task = asyncio.ensure_future(world.autoscaler.run(world.cluster, 2.0))
        world.proxies.readings[POD] = Reading(0)
        await asyncio.sleep(290)
        assert world.cluster.scales == [(CAT, 4)]
        await asyncio.sleep(20)
        assert world.cluster.scales == [(CAT, 4), (CAT, 1)]
        task.cancel()

    run(main())


def test_a_write_that_fails_is_tried_again_at_the_next_tick() -> None:
    async def main() -> None:
        errors = [ApiError(500, "no")]
        world = World(FakeCluster(refuse=lambda verb, what: errors.pop() if errors else None))
        await world.tick(35)
        assert world.cluster.scales == []
        await world.tick(35)
        assert world.cluster.scales == [(CAT, 4)]

    run(main())


def test_blindness_is_told_after_a_while_and_holds_the_replicas() -> None:
    async def main() -> None:
        world = World()
        await world.tick(35)
        for _ in range(20):
            await asyncio.sleep(2)
            await world.tick(None)
        assert world.autoscaler.state(CAT) is ScalingState.NO_DATA
        assert world.cluster.scales == [(CAT, 4)]
        assert world.changed == [CAT, CAT]

    run(main())


def test_a_service_that_no_longer_scales_is_forgotten() -> None:
    async def main() -> None:
        world = World()
        await world.tick(5)
        world.fleet.drop_service(CAT)
        await world.tick(5)
        assert world.autoscaler.state(CAT) is None

    run(main())


def test_an_objective_is_heard_of_without_scaling_and_told_once() -> None:
    async def main() -> None:
        world = World(spec=OBJECTIVE)
        assert world.autoscaler.attainable(CAT) is None
        for answer in (True, True, False, True, False):
            await world.tick(35, attainable=answer)
        assert world.autoscaler.attainable(CAT) == {POD: False}
        assert world.changed == [CAT, CAT]
        assert world.cluster.scales == []

    run(main())


def test_a_silent_pod_is_told_once() -> None:
    async def main() -> None:
        world = World(spec=OBJECTIVE)
        task = asyncio.ensure_future(world.autoscaler.run(world.cluster, 2.0))
        await asyncio.sleep(1)
        assert world.changed == []
        await asyncio.sleep(100)
        assert world.autoscaler.attainable(CAT) == {}
        assert world.changed == [CAT]
        task.cancel()

    run(main())


def test_an_objective_that_is_taken_back_is_forgotten() -> None:
    async def main() -> None:
        world = World(spec=OBJECTIVE)
        await world.tick(5, attainable=True)
        world.fleet.see_service(CAT, service(MINIMAL, generation=2))
        await world.tick(5, attainable=True)
        assert world.autoscaler.attainable(CAT) is None

    run(main())
