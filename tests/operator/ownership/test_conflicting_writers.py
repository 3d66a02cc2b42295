"""Other writers of fields that are ours: HPAs, VPAs, KEDA, Argo CD, kubectl scale, webhooks, of any period."""

import asyncio
from typing import Any

import pytest

from shoal_operator.children.observation import Key
from shoal_operator.manifests.desired import DEPLOYMENT, SERVICE, Child
from shoal_operator.manifests.labels import SERVICE_LABEL
from shoal_operator.reconciliation.reconciler import Reconciler
from shoal_schema.fields.declaring import Json
from tests.operator.fakes import FakeCluster, reconciler_of
from tests.operator.samples import MINIMAL, service, with_fields

CAT = Key("default", "cat")
HOUR_S = 3600


class World:
    """A service, and a writer that sets a field back every ``period_s`` where it is not as that one wants it."""

    def __init__(self, manager: str, kind: Child, path: tuple[str, ...], value: Any, period_s: int) -> None:
        self.manager, self.kind, self.path, self.value, self.period_s = manager, kind, path, value, period_s
        self.now_s = 0.0
        self.cluster = FakeCluster()
        self.cluster.services[CAT] = service(MINIMAL)
        self.operator: Reconciler = reconciler_of(self.cluster, clock=lambda: self.now_s)
        self.reversals = self._made = 0
        self.reconcile()
        self._made = self.writes()

    def reconcile(self) -> None:
        asyncio.run(self.operator.reconcile(CAT))

    def holder(self) -> Json:
        holder: Json = self.cluster.children[CAT, self.kind]
        for step in self.path[:-1]:
            holder = holder[step]
        return holder

    @property
    def stored(self) -> Any:
        return self.holder()[self.path[-1]]

    def interfere(self) -> None:
        if self.stored == self.value:
            return
        self.reversals += 1
        self.holder()[self.path[-1]] = self.value
        owned: Json = {}
        for step in reversed(self.path):
            owned = {f"f:{step}": owned}
        metadata = self.cluster.children[CAT, self.kind]["metadata"]
        entries = [each for each in metadata.get("managedFields", []) if each["manager"] != self.manager]
        metadata["managedFields"] = [*entries, {"manager": self.manager, "time": str(self.now_s), "fieldsV1": owned}]

    def run(self, rounds: int) -> None:
        """Let time pass: the writer comes in its period, and the operator looks a second after it."""
        for _ in range(rounds):
            self.now_s += self.period_s - 1
            self.interfere()
            self.now_s += 1
            self.reconcile()

    def condition(self, kind: str) -> Json:
        conditions: list[Json] = self.cluster.services[CAT]["status"]["conditions"]
        return next((each for each in conditions if each["type"] == kind), {})

    def writes(self) -> int:
        """Return how often the operator has written the object since it was made."""
        return self.cluster.writes.count(("apply", self.kind.kind)) - self._made


def replicas_set_by(manager: str, period_s: int, value: int = 4) -> World:
    return World(manager, DEPLOYMENT, ("spec", "replicas"), value, period_s)


@pytest.mark.parametrize("period_s", [2, 15, 60, 180, 900])
@pytest.mark.parametrize("manager", ["kube-controller-manager", "kubectl", "argocd-controller"])
def test_replicas_that_are_set_back_twice_are_left_and_the_writer_is_named(manager: str, period_s: int) -> None:
    world = replicas_set_by(manager, period_s)

    world.run(5)

    assert (world.reversals, world.writes(), world.stored) == (2, 1, 4)
    active = world.condition("ScalingActive")
    assert (active["status"], active["reason"]) == ("False", "AnotherScaler")
    assert manager in active["message"]
    assert "mode: External" in active["message"]
    assert world.condition("Ready")["reason"] != "AnotherOperator"
    [event] = [each for each in world.cluster.events if each["reason"] == "AnotherScaler"]
    assert event["type"] == "Warning"


def test_replicas_are_tried_once_an_hour_and_followed_again_when_the_other_writer_has_gone() -> None:
    world = replicas_set_by("kube-controller-manager", 60)
    world.run(5)
    world.run(160)
    assert world.writes() == 1 + 2
    assert world.condition("ScalingActive")["reason"] == "AnotherScaler"

    world.value = 1
    world.run(62)
    assert world.stored == 1
    assert world.condition("ScalingActive") == {}


def test_replicas_that_change_with_the_load_are_left_too() -> None:
    world = replicas_set_by("kube-controller-manager", 15, value=9)
    for wanted in range(2, 8):
        world.cluster.services[CAT]["spec"]["replicas"] = wanted
        world.run(1)

    assert (world.reversals, world.stored) == (2, 9)


def test_other_changes_of_the_spec_reach_pods_whose_replicas_are_left() -> None:
    world = replicas_set_by("kube-controller-manager", 15)
    world.run(5)
    world.cluster.services[CAT]["spec"] |= {"runtime": {"image": "runtime:2"}}
    world.run(5)

    spec = world.cluster.children[CAT, DEPLOYMENT]["spec"]
    assert spec["template"]["spec"]["containers"][0]["image"] == "runtime:2"
    assert (world.reversals, spec["replicas"]) == (2, 4)


def test_a_service_that_another_writer_keeps_without_pods_is_not_ready() -> None:
    world = replicas_set_by("downscaler", 15, value=0)
    world.run(5)

    assert (world.writes(), world.stored) == (2, 0)
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "AnotherOperator")
    assert "downscaler" in ready["message"]
    for kind in ("Available", "ModelLoaded", "ScalingActive"):
        condition = world.condition(kind)
        assert (condition["status"], condition["reason"]) == ("False", "AnotherScaler")
        assert "downscaler" in condition["message"]
    world.value = 1
    world.run(6)
    assert world.stored == 1
    assert world.condition("ScalingActive") == {}


def test_pods_that_another_writer_removes_are_restored_at_most_every_five_minutes() -> None:
    world = replicas_set_by("downscaler", 15, value=0)
    world.run(5)
    writes = world.writes()
    world.run(HOUR_S // 15)

    assert HOUR_S // 300 - 2 <= world.writes() - writes <= HOUR_S // 300 + 2


def test_pods_removed_during_a_long_pause_are_restored_at_once() -> None:
    world = World("mesh-controller", DEPLOYMENT, ("spec", "progressDeadlineSeconds"), 7, 15)
    world.run(5)
    assert world.condition("Ready")["reason"] == "AnotherOperator"
    world.holder()["replicas"] = 0
    world.run(1)

    assert world.holder()["replicas"] == 1


def test_a_selector_that_another_writer_changes_is_restored_within_minutes() -> None:
    world = World("mesh-controller", SERVICE, ("spec", "selector", SERVICE_LABEL), "dog", 15)
    world.cluster.children[CAT, DEPLOYMENT]["status"] = {"availableReplicas": 1}
    world.cluster.slices[CAT] = []
    world.run(5)
    writes = world.writes()
    world.run(HOUR_S // 15)

    assert HOUR_S // 300 - 2 <= world.writes() - writes <= HOUR_S // 300 + 2


def test_replicas_that_a_user_sets_are_tried_at_once() -> None:
    world = replicas_set_by("kube-controller-manager", 15)
    world.run(5)
    writes = world.writes()
    resource = world.cluster.services[CAT]
    for replicas in (2, 3):
        resource["spec"]["replicas"] = replicas
        entry = {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:replicas": {}}}, "time": ""}
        resource["metadata"]["managedFields"] = [entry]
        world.reconcile()
        assert world.stored == replicas
        world.run(5)
        assert world.stored == 4

    assert world.writes() == writes + 2


def test_two_reversals_within_days_are_no_conflict() -> None:
    world = replicas_set_by("kubectl", 3 * HOUR_S)
    world.run(5)

    assert world.stored == 1
    assert world.condition("ScalingActive") == {}


@pytest.mark.parametrize("period_s", [15, 180, 900])
def test_any_other_field_is_written_twice_and_then_once_an_hour(period_s: int) -> None:
    world = World("mesh-controller", SERVICE, ("spec", "type"), "NodePort", period_s)
    world.run(5)

    assert world.writes() == 2
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "AnotherOperator")
    assert "mesh-controller" in ready["message"]
    assert "spec.type" in ready["message"]

    world.run(3 * HOUR_S // period_s)
    assert 2 <= world.writes() - 2 <= 3


def test_spec_change_is_written_at_once_despite_a_conflict() -> None:
    world = World("mesh-controller", SERVICE, ("spec", "type"), "NodePort", 15)
    world.run(5)
    writes = world.writes()
    world.cluster.services[CAT]["spec"] = with_fields(MINIMAL, service__annotations={"a": "b"})
    world.run(1)

    assert world.writes() == writes + 1
    assert world.cluster.children[CAT, SERVICE]["metadata"]["annotations"]["a"] == "b"
