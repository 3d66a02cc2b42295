"""Another operator, with other images or another pod template: services follow one by one, and none is forgotten."""

import asyncio
import copy
import datetime
import heapq
import math
from typing import Any

import pytest
from msgspec import structs

from shoal_operator.children.conditions import find
from shoal_operator.children.observation import Key
from shoal_operator.children.pods import template_hash
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.loop.workqueue import Outcome
from shoal_operator.manifests.desired import DEPLOYMENT, Child
from shoal_operator.manifests.labels import SPEC_HASH_ANNOTATION
from shoal_operator.rollout.upgrading import Upgrading
from shoal_schema.fields.declaring import Json
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource.conditions import ConditionType
from tests.operator.fakes import FakeCluster, reconciler_of
from tests.operator.samples import DEFAULTS, MINIMAL, service, with_fields
from tests.operator.worlds import healthy

START_S = 40.0
DEADLINE_S = 600.0
RESYNC_S = 3600.0
MONDAY = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)
BAD = "shoal/runtime:bad"
EXCEEDED = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}


class Cluster(FakeCluster):
    """A cluster that counts the generations of Deployments."""

    async def apply(self, kind: Child, body: Json, uid: str | None) -> Json:
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"].removesuffix(kind.suffix))
        before = copy.deepcopy(self.children.get((key, kind)))
        stored = await super().apply(kind, body, uid)
        if before:
            generation = before["metadata"]["generation"] + (before["spec"] != stored["spec"])
            self.children[key, kind]["metadata"]["generation"] = stored["metadata"]["generation"] = generation
        return stored


class World:
    """Services whose pods take a while to start, and never do with a bad image; a clock; and one operator at a time."""

    def __init__(self, *names: str, spec: Json = MINIMAL) -> None:
        self.cluster, self.now_s = Cluster(), 0.0
        self.due_s: dict[Key, float] = {}
        self.made: dict[Key, tuple[str | None, float]] = {}
        """By service, the template that its Deployment has, and since when."""
        self.settling: list[tuple[float, Key]] = []
        self.unready, self.begun = 0, list[str]()
        for day, name in enumerate(names):
            created = (MONDAY + datetime.timedelta(days=day)).strftime("%Y-%m-%dT%H:%M:%SZ")
            resource = service(spec, name=name, uid=f"uid-{name}", creationTimestamp=created)
            self.cluster.services[Key("default", name)] = resource

    def utc_now(self) -> datetime.datetime:
        return MONDAY + datetime.timedelta(seconds=self.now_s)

    def start(self, **settings: Any) -> None:
        """Start a leader without any state but the cluster's."""
        self.settings: OperatorProcess = structs.replace(DEFAULTS, **settings)
        self.due_s = dict.fromkeys(sorted(self.cluster.services, reverse=True), self.now_s)
        records = Records()
        self.upgrading = Upgrading(self.cluster, records, self.settings, self._mark, self.utc_now)
        self.upgrading.load(self.cluster.services.values())
        self.reconciler = reconciler_of(
            self.cluster,
            defaults=self.settings,
            utc_now=self.utc_now,
            clock=lambda: self.now_s,
            records=records,
            upgrading=self.upgrading,
        )

    def _mark(self, key: Key, delay_s: float) -> None:
        self.due_s[key] = min(self.due_s.get(key, self.now_s + delay_s), self.now_s + delay_s)

    def run(self, seconds: float) -> None:
        """Let time pass: what is due is looked at, and pods start."""
        end_s = self.now_s + seconds
        while True:
            while due := [key for key, due_s in self.due_s.items() if due_s <= self.now_s]:
                self._look(due[0])
            while self.settling and self.settling[0][0] <= self.now_s:
                self._settle(heapq.heappop(self.settling)[1])
            next_s = min((*self.due_s.values(), *(at_s for at_s, _ in self.settling[:1])), default=math.inf)
            if next_s > end_s:
                self.now_s = end_s
                return
            self.now_s = next_s

    def reconcile(self, name: str = "cat") -> None:
        self._look(Key("default", name))

    def _look(self, key: Key) -> None:
        self.due_s.pop(key, None)
        outcome = asyncio.run(self.reconciler.reconcile(key))
        self._mark(key, 60.0 if outcome is Outcome.FAILED else RESYNC_S)
        deployment = self.cluster.children.get((key, DEPLOYMENT))
        made = template_hash(deployment["spec"]["template"]) if deployment else None
        if deployment and self.made.get(key, (None, 0.0))[0] != made:
            before = self.made.get(key)
            self.made[key] = (made, self.now_s)
            for delay_s in (START_S, DEADLINE_S):
                heapq.heappush(self.settling, (self.now_s + delay_s, key))
            old = self.cluster.pods.get(key, [])
            counts = {"replicas": 1 + len(old), "updatedReplicas": 1, "availableReplicas": len(old)}
            deployment["status"] = {**seen(deployment), **counts}
            if before:
                self.begun.append(key.name)
                self._mark(key, 0.05)
        if self.begun:
            ready = [condition_of(each, "Ready").get("status") for each in self.cluster.services.values()]
            self.unready = max(self.unready, sum(status != "True" for status in ready))

    def _settle(self, key: Key) -> None:
        """Have the pods started that can be."""
        deployment = self.cluster.children[key, DEPLOYMENT]
        template = deployment["spec"]["template"]
        runtime = next(each for each in template["spec"]["containers"] if each["name"] == "runtime")
        if runtime["image"] != BAD:
            status = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running", "podIP": "10.0.0.1"}
            metadata = {"name": key.name, "uid": key.name, **copy.deepcopy(template["metadata"])}
            self.cluster.pods[key] = [{"metadata": metadata, "spec": template["spec"], "status": status}]
            deployment["status"] = {**seen(deployment), **healthy(1)}
        elif self.now_s - self.made[key][1] >= DEADLINE_S:
            deployment["status"] |= {"conditions": [EXCEEDED]}
        self._mark(key, 0.05)

    def images(self) -> dict[str, str]:
        """Return by name the image that each service's runtime has."""
        return {
            key.name: next(each["image"] for each in containers_of(body) if each["name"] == "runtime")
            for (key, kind), body in self.cluster.children.items()
            if kind == DEPLOYMENT
        }

    def condition(self, name: str = "cat", kind: str = "Upgraded") -> Json:
        return condition_of(self.cluster.services[Key("default", name)], kind)

    def status(self, name: str = "cat") -> Json:
        found: Json = self.cluster.services[Key("default", name)]["status"]
        return found

    def change(self, name: str = "cat", **fields: Any) -> None:
        """Write a new spec, as its user does."""
        resource = self.cluster.services[Key("default", name)]
        resource["spec"] = with_fields(resource["spec"], **fields)
        resource["metadata"]["generation"] += 1
        self._mark(Key("default", name), 0.0)


def seen(deployment: Json) -> Json:
    return {"observedGeneration": deployment["metadata"]["generation"]}


def containers_of(deployment: Json) -> list[Json]:
    found: list[Json] = deployment["spec"]["template"]["spec"]["containers"]
    return found


def condition_of(resource: Json, kind: str) -> Json:
    return find(resource.get("status", {}).get("conditions", []), ConditionType(kind)) or {}


def served(*names: str, **settings: Any) -> World:
    """Return a world whose services are ready."""
    world = World(*(names or ("cat",)))
    world.start(**settings)
    world.run(START_S + 1)
    assert all(condition_of(each, "Ready")["status"] == "True" for each in world.cluster.services.values())
    return world


NEW: Json = {"runtime_image": "shoal/runtime:new", "proxy_image": "shoal/proxy:new"}


def test_of_300_services_one_after_another_gets_another_operators_images_the_oldest_first() -> None:
    names = [f"s{number:03}" for number in range(300)]
    world = served(*names)
    world.start(**NEW)
    world.run(10 * START_S - 1)

    assert world.begun == names[:10]
    assert world.unready == 1
    images = world.images()
    assert [images[name] for name in names] == ["shoal/runtime:new"] * 10 + ["shoal/runtime:test"] * 290
    assert world.status(names[0])["images"] == {"proxy": "shoal/proxy:new", "runtime": "shoal/runtime:new"}
    assert [name for name in names if "upgrade" in world.status(name)] == names[9:10]
    assert [world.condition(name).get("reason") for name in (names[0], names[10])] == [None, "UpgradePending"]


def test_no_upgrade_starts_before_every_service_has_been_reconciled() -> None:
    world = served("old", "new")
    world.start(**NEW)
    for name in ("new", "old"):
        world.reconcile(name)
        assert world.begun == []
    world.run(1)

    assert world.begun == ["old"]
    assert world.upgrading.counts() == {"pending": 1, "running": 1, "failed": 0}


def test_a_service_that_is_gone_is_waited_for_no_more() -> None:
    world = served("cat", "dog")
    world.start(**NEW)
    del world.cluster.services[Key("default", "cat")]
    world.run(1)

    assert world.begun == ["dog"]


def test_as_many_at_a_time_as_may_be_and_a_restart_forgets_none() -> None:
    names = [f"s{number:02}" for number in range(12)]
    world = served(*names)
    for _ in range(14):
        world.start(**NEW, upgrade_unavailable_services=3)
        world.run(13.0)

    assert (set(world.begun[:3]), sorted(world.begun)) == (set(names[:3]), names)
    assert world.unready == 3
    assert set(world.images().values()) == {"shoal/runtime:new"}


def test_with_none_at_a_time_a_service_keeps_its_images_and_says_so_once() -> None:
    world = served(upgrade_unavailable_services=0)
    world.start(**NEW, upgrade_unavailable_services=0)
    world.run(3600)
    world.cluster.writes.clear()
    world.start(**NEW, upgrade_unavailable_services=0)
    world.run(3600)

    assert world.cluster.writes == []
    assert (world.condition()["status"], world.condition()["reason"]) == ("False", "UpgradePending")
    assert "runtime shoal/runtime:test" in world.condition()["message"]
    assert world.condition(kind="Ready")["status"] == "True"
    assert world.status()["images"] == {"proxy": "shoal/proxy:test", "runtime": "shoal/runtime:test"}


@pytest.mark.parametrize("fields", [{"replicas": 3}, {"scaling": {"maxReplicas": 5}}], ids=["replicas", "scaling"])
def test_other_replicas_of_a_service_that_waits_come_with_the_images_that_it_has(fields: Json) -> None:
    world = served(upgrade_unavailable_services=0)
    world.start(**NEW, upgrade_unavailable_services=0)
    world.change(**fields)
    world.run(60)

    assert world.images() == {"cat": "shoal/runtime:test"}
    assert world.cluster.children[Key("default", "cat"), DEPLOYMENT]["spec"]["replicas"] == fields.get("replicas", 1)


def test_another_spec_brings_the_operators_images_at_once() -> None:
    world = served(upgrade_unavailable_services=0)
    world.start(**NEW, upgrade_unavailable_services=0)
    world.change(batching__maxBatchSize=4)
    world.run(START_S + 1)

    assert world.images() == {"cat": "shoal/runtime:new"}
    assert world.status()["images"]["runtime"] == "shoal/runtime:new"
    assert world.condition() == {}


def test_images_that_the_spec_names_are_the_users_and_are_not_noted() -> None:
    world = World("cat", spec=with_fields(MINIMAL, runtime={"image": "example/own:1"}))
    world.start()
    world.run(START_S + 1)
    world.start(**NEW)
    world.run(60)

    assert world.images() == {"cat": "example/own:1"}
    assert world.status()["images"] == {"proxy": "shoal/proxy:new"}


def test_upgrades_begin_in_their_hours_alone() -> None:
    world = served("cat", "dog", "fox")
    world.start(**NEW, upgrade_window="02:00-02:01 UTC")
    world.run(2 * 3600 - world.now_s - 1)
    assert world.begun == []
    world.run(600)
    assert world.begun == ["cat", "dog"]  # the third would begin after the end
    world.run(24 * 3600)
    assert world.begun == ["cat", "dog", "fox"]


def test_a_service_that_is_not_ready_after_its_upgrade_stops_the_others_until_it_is_mended() -> None:
    world = served("cat", "dog")
    world.start(runtime_image=BAD)
    world.run(300)
    assert world.condition()["reason"] == "Upgrading"
    world.run(600)
    assert (world.condition()["status"], world.condition()["reason"]) == ("False", "UpgradeFailed")
    assert [event["type"] for event in world.cluster.events if event["reason"] == "UpgradeFailed"] == ["Warning"]
    world.start(runtime_image=BAD)
    world.run(24 * 3600)
    assert world.images() == {"cat": BAD, "dog": "shoal/runtime:test"}
    assert world.upgrading.counts() == {"pending": 1, "running": 0, "failed": 1}

    world.start(**NEW)
    world.run(3 * START_S)
    assert world.images() == {"cat": "shoal/runtime:new", "dog": "shoal/runtime:new"}
    assert world.upgrading.counts() == {"pending": 0, "running": 0, "failed": 0}


def test_a_service_that_was_not_ready_before_comes_last_and_stops_nobody() -> None:
    world = World("cat", "dog")
    world.start(runtime_image=BAD)
    world.run(START_S)
    world.change("dog", runtime={"image": "example/own:1"})
    world.run(START_S + 700)
    assert [world.condition(name, "Ready")["status"] for name in ("cat", "dog")] == ["False", "True"]
    world.start(proxy_image="shoal/proxy:new", runtime_image=BAD)
    world.run(1)
    assert world.begun[-1] == "dog"
    world.run(2000)

    assert world.begun[-1] == "cat"
    assert world.upgrading.counts() == {"pending": 0, "running": 0, "failed": 0}
    assert world.condition() == {}


def test_another_pod_template_of_another_release_waits_for_its_turn_too() -> None:
    world = served("cat", "dog")
    made = dict(world.made)
    world.start(listen_host="0.0.0.0", upgrade_unavailable_services=0)
    world.run(60)
    assert world.made == made
    assert world.condition()["reason"] == "UpgradePending"
    world.start(listen_host="0.0.0.0")
    world.run(3 * START_S)

    assert world.begun == ["cat", "dog"]


def test_a_service_of_a_release_that_noted_nothing_keeps_what_its_deployment_has() -> None:
    world = served()
    deployment = world.cluster.children[Key("default", "cat"), DEPLOYMENT]
    del deployment["metadata"]["annotations"][SPEC_HASH_ANNOTATION]
    del world.status()["images"]
    world.start(**NEW, listen_host="0.0.0.0", upgrade_unavailable_services=0)
    world.run(60)
    world.change(replicas=2)
    world.run(60)

    assert world.images() == {"cat": "shoal/runtime:test"}
    assert world.status()["images"] == {"proxy": "shoal/proxy:test", "runtime": "shoal/runtime:test"}
    world.change(batching__maxBatchSize=4)
    world.run(60)
    assert world.images() == {"cat": "shoal/runtime:new"}


def test_a_deployment_that_somebody_deletes_comes_back_with_the_images_that_it_had() -> None:
    world = served(upgrade_unavailable_services=0)
    world.start(**NEW, upgrade_unavailable_services=0)
    world.run(60)
    del world.cluster.children[Key("default", "cat"), DEPLOYMENT]
    world.reconcile()
    world.reconcile()

    assert world.images() == {"cat": "shoal/runtime:test"}


def test_what_somebody_changes_in_a_deployment_that_waits_is_put_right_where_only_its_images_are_others() -> None:
    world = served(upgrade_unavailable_services=0)
    world.start(**NEW, upgrade_unavailable_services=0)
    world.run(60)
    spec = world.cluster.children[Key("default", "cat"), DEPLOYMENT]["spec"]["template"]["spec"]
    spec["containers"][0]["image"] = "evil"
    world.reconcile()

    assert world.images() == {"cat": "shoal/runtime:test"}


@pytest.mark.parametrize(("code", "began"), [(403, []), (500, [])])
def test_an_upgrade_that_cannot_be_written_down_does_not_begin(code: int, began: list[str]) -> None:
    world = served()
    refused = ApiError(code, "no")
    world.cluster._refuse = lambda verb, what: refused if verb == "status" else None
    world.start(**NEW)
    if code == 403:
        world.reconcile()
    else:
        with pytest.raises(ApiError):
            world.reconcile()

    assert world.begun == began
    assert world.images() == {"cat": "shoal/runtime:test"}
    world.cluster._refuse = lambda verb, what: None
    world.start(**NEW)
    world.run(START_S + 1)
    assert world.begun == ["cat"]


def test_under_a_definition_that_cannot_remember_upgrades_none_begins() -> None:
    world = served()
    world.cluster.pruned = frozenset({"upgrade"})
    world.start(**NEW)
    world.run(600)

    assert world.images() == {"cat": "shoal/runtime:test"}
    assert world.condition()["reason"] == "UpgradePending"


def test_a_service_without_pods_is_upgraded_and_nobody_waits_for_it() -> None:
    world = served("cat", "dog")
    world.change(replicas=0)
    world.cluster.pods[Key("default", "cat")] = []
    world.run(5)
    world.start(**NEW)
    world.run(2 * START_S)

    assert set(world.images().values()) == {"shoal/runtime:new"}
    assert "upgrade" not in world.status()
