"""Services that scale to zero: reconciliations, ticks and a simulated activator together."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.manifests.desired import DEPLOYMENT, ENDPOINT_SLICE, SERVICE
from shoal_operator.scaling.reading import Reading
from shoal_operator.scaling.service_cache import CachedService
from shoal_operator.zero.decision import SETTLE_S
from shoal_operator.zero.hosted import HostedService
from shoal_operator.zero.ports import REST_S
from shoal_operator.zero.scale_to_zero import ScaleToZero
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.activator import (
    ActivatorAsynchronous,
    ActivatorReport,
    ActivatorTable,
    decode_table,
    encode,
)
from shoal_schema.process.settings.operator import OperatorProcess
from tests.operator.fakes import FakeCluster, reconciler_of
from tests.operator.loads import holding
from tests.operator.samples import MINIMAL, service, with_fields
from tests.operator.worlds import healthy, pod

CAT = Key("default", "cat")
SPEC = with_fields(MINIMAL, scaling={"minReplicas": 0, "maxReplicas": 3, "scaleToZeroDelaySeconds": 60}, replicas=1)
SETTINGS = OperatorProcess(proxy_image="p", runtime_image="r", namespace="system", activator_selector="a=b")
QUIET = Reading(holding(0))


class FakeActivator:
    """An activator that applies each table at once and reports given held requests."""

    def __init__(self) -> None:
        self.address = f"127.{random.randint(1, 254)}.{random.randint(0, 254)}.{random.randint(2, 254)}"
        self.waiting: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.version = ""
        self._count = 0
        self._changed = asyncio.Event()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/waiting", self._respond)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address, 9090).start()

    async def stop(self) -> None:
        self._changed.set()  # respond to the long poll: aiohttp sometimes never finishes a cancelled request
        await self._runner.cleanup()

    def report(self, version: str, **waiting: int) -> None:
        self.version, self.waiting = version, {f"default/{name}": count for name, count in waiting.items()}
        self._count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def _respond(self, request: web.Request) -> web.Response:
        if request.query["seen"] == str(self._count):
            await self._changed.wait()
        return web.Response(body=encode(ActivatorReport(str(self._count), self.version, self.waiting, self.refused)))


class Cluster(FakeCluster):
    """A cluster with pods of an activator; a written scale is in the spec at once."""

    def __init__(self, *activators: str) -> None:
        super().__init__()
        self.addresses = [pod(uid=f"activator-{address}", podIP=address) for address in activators]

    async def list_services(self, namespaces: object) -> list[Json]:
        return list(self.services.values())

    async def list_pods(self, namespace: str, selector: str) -> tuple[Json, ...]:
        assert (namespace, selector) == (SETTINGS.namespace, SETTINGS.activator_selector)
        return tuple(self.addresses)

    async def scale(self, key: Key, replicas: int, *, was: int | None = None) -> Json | None:
        before = await super().scale(key, replicas, was=was)
        if before is not None:
            self.services[key]["spec"]["replicas"] = replicas
            self.services[key]["metadata"]["generation"] += 1
        return before


class World:
    """One service that scales to zero, and one activator."""

    def __init__(self, activator: FakeActivator, **metadata: Any) -> None:
        self.now_s, self.activator, self.settings = 0.0, activator, SETTINGS
        self.records, self.changed, self.delays_s = Records(), list[Key](), dict[Key, float]()
        self.cluster = Cluster(activator.address)
        self.cluster.services[CAT] = {**service(SPEC), **metadata}
        self.restart()

    def _mark(self, key: Key, delay_s: float) -> None:
        self.changed.append(key)
        self.delays_s[key] = delay_s

    def restart(self, **settings: Any) -> None:
        """Begin as an operator does that has just started."""
        self.settings = structs.replace(self.settings, **settings)
        clock: Callable[[], float] = lambda: self.now_s  # noqa: E731
        # Its first reconciliation has just read the pods.
        cached, self.records = self.records.get(CAT, CachedService), Records()
        self.records.put(CAT, cached)
        self.scale_to_zero = ScaleToZero(self.records, self.settings, self._mark, clock)
        self.reconciler = reconciler_of(
            self.cluster,
            defaults=self.settings,
            records=self.records,
            clock=clock,
            scale_to_zero=self.scale_to_zero,
        )

    async def start(self) -> None:
        """Begin to lead."""
        await self.scale_to_zero.start(self.cluster, await self.cluster.list_services(()))

    async def reconcile(self, *, ready: bool = True) -> Json:
        """Reconcile twice, with pods as the Deployment declares; return the Ready condition."""
        for _ in range(2):
            await self.reconciler.reconcile(CAT)
            deployment = self.cluster.children[CAT, DEPLOYMENT]
            wanted = deployment["spec"]["replicas"]
            count = wanted if ready else 0
            self.cluster.children[CAT, DEPLOYMENT] = {
                **deployment,
                "status": {"observedGeneration": 1, **healthy(count)},
            }
            self.cluster.pods[CAT] = [pod(SPEC, ready=ready)] if wanted else []
            self.cluster.slices[CAT] = [self._slice(count)]
        return self.condition("Ready")

    def condition(self, kind: str) -> Json:
        """Return a condition of the status; empty where there is none."""
        conditions = self.cluster.services[CAT]["status"]["conditions"]
        return next((dict(each) for each in conditions if each["type"] == kind), {})

    def _slice(self, count: int) -> Json:
        uid = self.cluster.children[CAT, SERVICE]["metadata"]["uid"]
        owner = {"controller": True, "uid": uid, "name": "cat"}
        return {"metadata": {"name": "cat-x1", "ownerReferences": [owner]}, "endpoints": [{"conditions": {}}] * count}

    async def tick(self, reading: Reading = QUIET) -> bool:
        pods = self.records.get(CAT, CachedService).replicas
        return await self.scale_to_zero.process_readings(CAT, pods, [reading for _ in pods])

    async def table(self, seen: str = "") -> ActivatorTable:
        answer = await self.scale_to_zero.routing_table(seen)
        assert answer is not None
        return decode_table(answer)

    @property
    def slice(self) -> Json | None:
        return self.cluster.children.get((CAT, ENDPOINT_SLICE))

    @property
    def replicas(self) -> int:
        return int(self.cluster.services[CAT]["spec"]["replicas"])


def play(story: Callable[[World], Awaitable[None]], **metadata: Any) -> None:
    """Run a story in a world whose operator polls its activator."""

    async def main() -> None:
        activator = FakeActivator()
        await activator.start()
        world = World(activator, **metadata)
        await world.start()
        following = asyncio.create_task(world.scale_to_zero.run(world.cluster))
        try:
            async with asyncio.timeout(20):
                await story(world)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await activator.stop()

    asyncio.run(main())


async def until(check: Callable[[], bool]) -> None:
    while not check():  # noqa: ASYNC110 (what is waited for has no event)
        await asyncio.sleep(0.005)


async def fall_asleep(world: World) -> None:
    await world.reconcile()
    await world.tick()
    world.now_s += 60
    await world.tick()
    await world.reconcile()
    world.activator.report((await world.table()).version)
    world.now_s += SETTLE_S
    await until(lambda: world.scale_to_zero._holds(CAT, world.records.get(CAT, HostedService)))
    await world.tick()
    assert world.replicas == 0
    await world.reconcile()


def test_activators_are_endpoints_and_hold_before_the_last_pod_stops() -> None:
    async def story(world: World) -> None:
        await world.reconcile()
        assert world.slice is None
        await world.tick()
        world.now_s += 60
        await world.tick()
        assert world.changed == [CAT]
        await world.reconcile()
        assert world.slice is not None
        assert world.slice["endpoints"][0]["addresses"] == [world.activator.address]
        assert (await world.table()).services[0].addresses == ()
        world.now_s += 100
        await world.tick()
        assert world.replicas == 1, "an activator that has not reported the table"

    play(story)


def test_service_at_zero_is_ready_and_keeps_its_port_in_the_activator() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        condition = await world.reconcile()
        assert (condition["status"], condition["reason"]) == ("True", "ScaledToZero")
        assert world.cluster.services[CAT]["status"]["activator"] == {"port": 20000}
        assert world.slice is not None
        assert world.cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] == 0

    play(story)


def test_held_request_starts_a_pod_without_a_tick() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        world.activator.report((await world.table()).version, cat=1)
        await until(lambda: world.replicas == 1)
        condition = await world.reconcile(ready=False)
        assert (condition["status"], condition["reason"]) == ("True", "Waking")
        assert world.slice is not None
        world.now_s += 10
        condition = await world.reconcile()
        assert (condition["status"], condition["reason"]) == ("True", "Ready")
        assert world.slice is None
        await world.tick()
        reported = (await world.table()).services[0]
        assert (len(reported.addresses), reported.start_s) == (1, 10.0)

    play(story)


def test_restarted_operator_keeps_slice_and_port_of_a_service_at_zero() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        before = world.slice
        world.restart()
        assert await world.scale_to_zero.routing_table("") is None
        await world.start()
        await world.reconcile()
        await world.start()  # it leads once more, after another did
        assert await world.scale_to_zero.routing_table("") is None, (
            "an activator closes the ports that the table does not contain"
        )
        await world.reconcile()
        assert world.slice == before
        assert (await world.table()).services[0].port == 20000
        await world.tick()
        assert world.replicas == 0

    play(story)


def test_service_that_no_longer_scales_to_zero_leaves_the_activator_once_pods_serve() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        world.cluster.services[CAT]["spec"] = with_fields(SPEC, scaling={"minReplicas": 1, "maxReplicas": 3})
        await world.reconcile(ready=False)
        assert world.slice is not None
        assert len((await world.table()).services) == 1
        world.now_s += 10
        await world.reconcile()
        await world.reconcile()
        assert world.slice is None
        assert (await world.table()).services == ()

    play(story)


def test_requests_are_not_held_for_a_service_scaled_to_zero_by_a_user() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        world.cluster.services[CAT]["spec"] = with_fields(SPEC, scaling=None, replicas=0)
        condition = await world.reconcile()
        assert (condition["status"], condition["reason"]) == ("False", "Parked")
        assert world.slice is None
        assert (await world.table()).services == ()

    play(story)


def test_without_an_activator_the_spec_is_rejected_with_a_remedy() -> None:
    async def story(world: World) -> None:
        world.restart(activator_selector="")
        await world.reconciler.reconcile(CAT)
        ready = world.cluster.services[CAT]["status"]["conditions"][0]
        assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
        assert "activator.enabled" in ready["message"]
        assert (CAT, DEPLOYMENT) not in world.cluster.children

    play(story)


@pytest.mark.parametrize("reading", [Reading(), Reading(invalid=True), Reading(holding(3))])
def test_unreadable_pod_counts_as_a_request(reading: Reading) -> None:
    async def story(world: World) -> None:
        await world.reconcile()
        await world.tick(reading)
        for _ in range(5):
            world.now_s += 60
            await world.tick(reading)
        assert world.changed == []

    play(story)


def test_long_poll_returns_when_the_table_changes() -> None:
    async def story(world: World) -> None:
        await world.reconcile()
        asked = asyncio.create_task(world.table((await world.table()).version))
        await asyncio.sleep(0)
        assert not asked.done()
        world.records.drop(CAT)
        assert (await asked).services == ()

    play(story)


def test_the_table_has_all_activators_and_the_limits_of_asynchronous_requests() -> None:
    async def story(world: World) -> None:
        spec = world.cluster.services[CAT]["spec"]
        spec["asynchronous"] = {"resultSeconds": 60, "store": {"uri": "s3://results/cat"}}
        await world.reconcile()
        table = await world.table()
        (entry,) = table.services
        assert entry.asynchronous == ActivatorAsynchronous(3600, 60, store=True)
        assert table.peers == (world.activator.address,)

        world.cluster.addresses.append(pod(uid="another", podIP="127.0.0.9"))
        assert (await world.table(table.version)).peers == tuple(sorted((world.activator.address, "127.0.0.9")))

        del spec["asynchronous"]
        await world.reconcile()
        (entry,) = (await world.table()).services
        assert entry.asynchronous is None

    play(story)


def test_a_port_outside_the_range_is_left_for_one_within_it() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        for port in (9090, 1, 20000):
            world.cluster.services[CAT]["status"]["activator"] = {"port": port}
            world.restart(activator_first_port=21000)
            await world.start()
            await world.reconcile()
            assert world.slice is not None
            assert world.slice["ports"][0]["port"] == 21000
            assert world.cluster.services[CAT]["status"]["activator"] == {"port": 21000}
            assert (await world.table()).services[0].port == 21000

    play(story)


def test_activator_that_cannot_open_a_port_is_no_endpoint_and_blocks_scaling_to_zero() -> None:
    async def story(world: World) -> None:
        await world.reconcile()
        world.activator.refused = {"default/cat": "Address already in use"}
        world.activator.report((await world.table()).version)
        await until(lambda: any(activator.refused for activator in world.scale_to_zero._activator_pods.known))
        ready = await world.reconcile()
        assert (ready["status"], ready["reason"]) == ("True", "Ready")
        reported = world.condition("ActivatorReady")
        assert (reported["status"], reported["reason"]) == ("False", "NoActivator")
        assert "cannot open this service's port 20000 (Address already in use)" in reported["message"]
        await world.tick()
        for _ in range(3):
            world.now_s += 60
            await world.tick()
            await world.reconcile()
        assert world.replicas == 1
        assert world.slice is not None
        assert world.slice["endpoints"] == []

    play(story)


def test_port_that_an_activator_cannot_open_affects_no_other_service() -> None:
    async def story(world: World) -> None:
        world.activator.refused = {"default/dog": "Address already in use"}
        await fall_asleep(world)
        assert world.replicas == 0
        assert world.condition("ActivatorReady") == {}

    play(story)


def test_service_at_zero_without_a_ready_activator_reports_it() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        activators, world.cluster.addresses = world.cluster.addresses, []
        await world.scale_to_zero._activator_pods.find(world.cluster)
        assert world.changed[-1] == CAT
        for condition in (await world.reconcile(), world.condition("Available"), world.condition("ActivatorReady")):
            assert (condition["status"], condition["reason"]) == ("False", "NoActivator")
            assert "kubectl get deployments,pods --namespace system --selector a=b shows why" in condition["message"]
            assert "--replicas=1 starts one" in condition["message"]
        world.cluster.addresses = activators
        await world.scale_to_zero._activator_pods.find(world.cluster)
        ready = await world.reconcile()
        assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero")
        assert world.condition("ActivatorReady") == {}

    play(story)


def test_without_a_ready_activator_scaling_to_zero_by_a_user_keeps_the_pods() -> None:
    async def story(world: World) -> None:
        await world.reconcile()
        activators, world.cluster.addresses = world.cluster.addresses, []
        await world.scale_to_zero._activator_pods.find(world.cluster)
        await world.cluster.scale(CAT, 0)
        ready = await world.reconcile()
        assert (ready["status"], ready["reason"]) == ("True", "Ready")
        assert "the operator removes no pod" in world.condition("ActivatorReady")["message"]
        assert world.cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] == 1
        world.cluster.addresses = activators
        await world.scale_to_zero._activator_pods.find(world.cluster)
        await world.reconcile()
        assert world.cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] == 0

    play(story)


def test_unreachable_activator_is_reported_after_a_while() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        await world.activator.stop()
        world.now_s += 60
        await until(lambda: any(activator.silent for activator in world.scale_to_zero._activator_pods.known))
        ready = await world.reconcile()
        assert (ready["status"], ready["reason"]) == ("False", "NoActivator")
        assert f"the activator at {world.activator.address} does not respond to the operator" in ready["message"]

    play(story)


def test_service_at_zero_without_activators_has_no_endpoints() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        world.restart(activator_selector="")
        await world.start()
        ready = await world.reconcile()
        assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
        assert world.slice is None
        for kind in ("Available", "ModelLoaded"):
            condition = world.condition(kind)
            assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
            assert condition["message"].startswith("no pod runs, and none starts: spec.scaling.minReplicas")
        assert await world.scale_to_zero.process_readings(CAT, (), ()), "replicas are not raised, as no pod would come"

    play(story)


def test_foreign_endpoint_slice_is_left_alone_and_reported() -> None:
    async def story(world: World) -> None:
        theirs = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "cat"}}
        world.cluster.children[CAT, ENDPOINT_SLICE] = theirs
        ready = await world.reconcile()
        assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
        assert "EndpointSlice cat exists" in ready["message"]
        await world.cluster.scale(CAT, 0)
        await world.reconcile()
        assert world.cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] == 1
        assert world.slice == theirs
        del world.cluster.children[CAT, ENDPOINT_SLICE]
        await world.reconcile()
        assert world.slice is not None

    play(story)


def test_service_without_a_port_is_reconciled_when_one_is_free() -> None:
    async def story(world: World) -> None:
        dog = Key("default", "dog")
        world.restart(activator_ports=1)
        await world.reconcile()
        world.cluster.services[dog] = {**service(SPEC), "metadata": {**service(SPEC)["metadata"], "name": "dog"}}
        await world.reconciler.reconcile(dog)
        assert world.cluster.services[dog]["status"]["conditions"][0]["reason"] == "InvalidSpec"
        assert dog not in world.delays_s
        del world.cluster.services[CAT]
        await world.reconciler.reconcile(CAT)
        assert world.delays_s[dog] == REST_S
        world.now_s += REST_S
        await world.reconciler.reconcile(dog)
        assert world.cluster.services[dog]["status"]["activator"] == {"port": 20000}

    play(story)


def test_model_loaded_condition_of_a_service_at_zero() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        await world.reconcile()
        assert "the next request starts a pod" in world.condition("ModelLoaded")["message"]
        assert world.condition("Progressing")["message"].startswith("no pod runs")

    play(story)


def test_replicas_set_by_a_user_while_settling_are_kept() -> None:
    async def story(world: World) -> None:
        await world.reconcile()
        await world.tick()
        world.now_s += 60
        await world.tick()
        await world.reconcile()
        world.activator.report((await world.table()).version)
        world.now_s += SETTLE_S
        await until(lambda: world.scale_to_zero._holds(CAT, world.records.get(CAT, HostedService)))
        await world.cluster.scale(CAT, 2)  # after the reconciliation, before the tick
        world.changed.clear()
        await world.tick()
        assert world.replicas == 2
        assert CAT in world.changed
        await world.reconcile()
        await world.tick()
        assert world.replicas == 2
        assert "ScaledDown" not in events(world)

    play(story)


def test_scaling_to_and_from_zero_is_reported_with_reasons() -> None:
    async def story(world: World) -> None:
        await fall_asleep(world)
        assert events(world)["ScaledDown"] == "1 to 0 replicas: no requests for 60 s"
        world.activator.report((await world.table()).version, cat=3)
        await until(lambda: "ScaledUp" in events(world))
        assert events(world)["ScaledUp"] == "0 to 1 replica: 3 requests held in the activator"

    play(story)


def events(world: World) -> dict[str, str]:
    """Return the last message of each reason."""
    return {event["reason"]: event["message"] for event in world.cluster.events}
