from datetime import UTC, datetime, timedelta
from typing import Any

from shoal_local.controllers.changes import Action, Changes, Create, Delete, Patch, PostEvent
from shoal_local.controllers.deployments import REVISION, find_new, plan_deployment, revision_of

Object = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)


class Cluster:
    """Executes plans on one Deployment and its ReplicaSets."""

    def __init__(self, deployment: Object) -> None:
        self.deployment = deployment
        self.sets: dict[str, Object] = {}
        self.now = START

    def step(self) -> Changes:
        plan = plan_deployment(self.deployment, list(self.sets.values()), self.now)
        for action in plan.actions:
            match action:
                case Create(made):
                    self._create(made)
                case Patch(obj, patch):
                    merge(self._live(obj), patch)
                case Delete(obj):
                    del self.sets[obj["metadata"]["name"]]
        return plan

    def settle(self, *, available: bool = True) -> None:
        """Execute steps and make pods available, until the plan is empty."""
        for _ in range(50):
            writes: list[Action] = [a for a in self.step().actions if not isinstance(a, PostEvent)]
            for rs in self.sets.values():
                size = rs["spec"]["replicas"]
                old = rs["status"].get("availableReplicas", 0)
                up = size if available else min(old, size)
                status = {"replicas": size, "readyReplicas": up, "availableReplicas": up}
                writes += [] if rs["status"] == status else [Patch(rs, status)]
                rs["status"] = status
            if not writes:
                return
        raise AssertionError("the rollout does not come to rest")

    def set_image(self, image: str) -> None:
        self.deployment["metadata"]["generation"] += 1
        meta = {"labels": {"app": "web"}}
        spec = {"containers": [{"name": "main", "image": image}]}
        self.deployment["spec"]["template"] = {"metadata": meta, "spec": spec}

    def sizes(self) -> dict[str, int]:
        return {
            rs["spec"]["template"]["spec"]["containers"][0]["image"]: rs["spec"]["replicas"]
            for rs in self.sets.values()
        }

    def condition(self, kind: str) -> Object:
        return next(c for c in self.deployment["status"]["conditions"] if c["type"] == kind)

    def _create(self, made: Object) -> None:
        self.now += timedelta(seconds=1)
        stamp = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        made["metadata"] |= {"uid": made["metadata"]["name"], "creationTimestamp": stamp}
        made["status"] = {}
        self.sets[made["metadata"]["name"]] = made

    def _live(self, obj: Object) -> Object:
        if obj["kind"] == "Deployment":
            return self.deployment
        return self.sets[obj["metadata"]["name"]]


def merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


def test_a_new_deployment_gets_its_replicas_and_a_revision(deployment: Object) -> None:
    cluster = Cluster(deployment)
    cluster.settle()
    assert cluster.sizes() == {"web:1": 3}
    assert deployment["metadata"]["annotations"][REVISION] == "1"
    assert cluster.condition("Progressing")["reason"] == "NewReplicaSetAvailable"
    assert cluster.condition("Available")["status"] == "True"
    assert deployment["status"]["updatedReplicas"] == deployment["status"]["readyReplicas"] == 3


def test_a_second_pass_over_a_settled_world_writes_nothing(deployment: Object) -> None:
    cluster = Cluster(deployment)
    cluster.settle()
    assert cluster.step().actions == []


def test_a_new_template_replaces_the_old_pods(deployment: Object) -> None:
    cluster = Cluster(deployment)
    cluster.settle()
    cluster.set_image("web:2")
    cluster.settle()
    assert cluster.sizes() == {"web:1": 0, "web:2": 3}


def test_rolling_back_uses_the_old_set_again_as_the_latest_revision(deployment: Object) -> None:
    cluster = Cluster(deployment)
    cluster.settle()
    cluster.set_image("web:2")
    cluster.settle()
    cluster.set_image("web:1")
    cluster.settle()
    new = find_new(deployment, cluster.sets.values())
    assert new is not None
    assert cluster.sizes() == {"web:1": 3, "web:2": 0}
    assert revision_of(new) == revision_of(deployment) == 3


def test_stalled_rollout_is_reported_after_the_deadline(deployment: Object) -> None:
    cluster = Cluster(deployment)
    cluster.settle()
    cluster.set_image("web:2")
    cluster.settle(available=False)
    assert cluster.sizes() == {"web:1": 3, "web:2": 1}
    assert cluster.condition("Progressing")["status"] == "True"
    cluster.now += timedelta(seconds=61)
    cluster.settle(available=False)
    assert cluster.condition("Progressing")["reason"] == "ProgressDeadlineExceeded"
    assert cluster.condition("Available")["status"] == "True"


def test_a_new_template_after_a_time_out_progresses_again(deployment: Object) -> None:
    cluster = Cluster(deployment)
    cluster.settle(available=False)
    cluster.now += timedelta(seconds=61)
    cluster.settle(available=False)
    assert cluster.condition("Progressing")["status"] == "False"
    cluster.set_image("web:2")
    cluster.step()
    cluster.step()
    assert cluster.condition("Progressing")["reason"] == "NewReplicaSetCreated"


def test_a_paused_deployment_scales_but_does_not_roll(deployment: Object) -> None:
    cluster = Cluster(deployment)
    cluster.settle()
    deployment["spec"]["paused"] = True
    cluster.set_image("web:2")
    deployment["spec"]["replicas"] = 5
    cluster.settle()
    assert cluster.sizes() == {"web:1": 5}


def test_recreate_starts_new_pods_only_when_the_old_are_gone(deployment: Object) -> None:
    deployment["spec"]["strategy"] = {"type": "Recreate"}
    cluster = Cluster(deployment)
    cluster.settle()
    cluster.set_image("web:2")
    cluster.step()
    cluster.step()
    assert cluster.sizes() == {"web:1": 0, "web:2": 0}
    cluster.settle()
    assert cluster.sizes() == {"web:1": 0, "web:2": 3}


def test_old_revisions_are_kept_up_to_the_limit(deployment: Object) -> None:
    cluster = Cluster(deployment)
    for number in range(1, 5):
        cluster.set_image(f"web:{number}")
        cluster.settle()
    assert cluster.sizes() == {"web:3": 0, "web:4": 3}


def test_a_deployment_that_goes_is_left_alone(deployment: Object) -> None:
    deployment["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert plan_deployment(deployment, [], START).actions == []
