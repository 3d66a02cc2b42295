"""Reconciliation of a BatchInference: its job is created once and patched, and its final status is kept."""

import asyncio
import copy
import datetime
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from shoal_operator.batch.reconciler import BatchReconciler
from shoal_operator.children.observation import Key
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.loop.workqueue import Outcome
from shoal_operator.manifests.desired import Child
from shoal_operator.manifests.job import JOB, QUEUE_LABEL, RAY_JOB
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.progress import JobProgress, WorkDone
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource import BATCH_PLURAL
from shoal_schema.resource.policy import Policy
from tests.operator.fakes import FakeCluster, NoNames
from tests.operator.manifests.test_job import MINIMAL, RAY, batch
from tests.operator.samples import DEFAULTS

KEY = Key("default", "score", BATCH_PLURAL)
NOW = datetime.datetime(2026, 11, 23, 6, 0, tzinfo=datetime.UTC)
COMPLETE = {"conditions": [{"type": "Complete", "status": "True", "reason": "CompletionsReached", "message": "done"}]}
FAILED = {
    "conditions": [{"type": "Failed", "status": "True", "reason": "FailedIndexes", "message": "Job has failed indexes"}]
}


class Cluster(FakeCluster):
    """Stores a ``BatchInference`` and its job."""

    async def observe_batch(self, key: Key, kind: Child) -> tuple[Json | None, tuple[Json, ...]]:
        pods = tuple(copy.deepcopy(self.pods.get(key, [])))
        return copy.deepcopy(self.children.get((Key(key.namespace, key.name), kind))), pods

    async def apply_status(self, resource: Json, status: Json) -> Json:
        self._write("status", "score")
        self.services[KEY]["status"] = copy.deepcopy(status)
        return copy.deepcopy(self.services[KEY])


class Pods:
    """What pods say, by uid."""

    def __init__(self) -> None:
        self.progress: dict[str, JobProgress] = {}
        self.left_s: float | None = None

    def latest(self, key: Key, replicas: Sequence[Replica]) -> dict[str, JobProgress]:
        return {each.uid: self.progress[each.uid] for each in replicas if each.uid in self.progress}

    def remaining_s(self, key: Key) -> float | None:
        return self.left_s


class World:
    """A cluster with one ``BatchInference`` in it, and what looks at it."""

    def __init__(self, spec: Json | None = None, defaults: OperatorProcess = DEFAULTS, **metadata: Any) -> None:
        self.cluster = Cluster(self._refuse)
        self.refusal: ApiError | None = None
        self.cluster.services[KEY] = batch(spec, **metadata)
        self.pods, self.now_s = Pods(), 1000.0
        self.kind = RAY_JOB if (spec or {}).get("engine") == "Ray" else JOB
        self.batches = BatchReconciler(
            self.cluster, Records(), defaults, NoNames(), self.pods, lambda: NOW, lambda: self.now_s
        )

    def _refuse(self, verb: str, what: str) -> Exception | None:
        return self.refusal if verb == "apply" else None

    def reconcile(self) -> Outcome:
        return asyncio.run(self.batches.reconcile(KEY))

    @property
    def job(self) -> Json:
        return self.cluster.children[Key("default", "score"), self.kind]

    def change(self, **spec: Any) -> None:
        self.cluster.services[KEY]["spec"] = {**self.cluster.services[KEY]["spec"], **spec}

    def lose_job(self) -> None:
        del self.cluster.children[Key("default", "score"), self.kind]

    @property
    def status(self) -> Json:
        found: Json = self.cluster.services[KEY]["status"]
        return found

    def true(self) -> list[str]:
        return [each["type"] for each in self.status["conditions"] if each["status"] == "True"]

    def add_pod(self, uid: str = "pod-1", phase: str = "Running", **container: Any) -> None:
        owner = {"kind": "Job", "uid": self.job["metadata"]["uid"], "controller": True}
        name = {"annotations": {"batch.kubernetes.io/job-completion-index": uid[-1]}}
        state = container or {"state": {"running": {}}}
        self.cluster.pods.setdefault(KEY, []).append(
            {
                "metadata": {"name": uid, "uid": uid, "ownerReferences": [owner], **name},
                "status": {"phase": phase, "podIP": "10.0.0.1", "containerStatuses": [{"name": "batch", **state}]},
            }
        )


BEFORE = WorkDone(shards=2, rows=20, failed_rows=3, bytes=20)


def said(done: int, rows: int, **more: Any) -> JobProgress:
    own = WorkDone(shards=done, rows=rows, failed_rows=1, bytes=10 * done)
    return JobProgress(shards_total=40, bytes_total=400, before=BEFORE, own=own, rows_per_second=100.0, **more)


def test_job_is_created_and_a_second_reconciliation_writes_nothing() -> None:
    world = World()
    assert world.reconcile() is Outcome.WAITING
    assert world.status["reason"] == "Starting"
    writes = list(world.cluster.writes)
    world.reconcile()
    assert world.cluster.writes == writes


def test_a_newer_operator_leaves_a_running_job_as_it_is() -> None:
    world = World()
    world.reconcile()
    before = copy.deepcopy(world.job)
    newer = structs.replace(DEFAULTS, runtime_image="shoal/runtime:newer")
    world.batches = BatchReconciler(
        world.cluster, Records(), newer, NoNames(), world.pods, lambda: NOW, lambda: world.now_s
    )
    world.reconcile()
    assert world.job == before


def test_mutable_fields_are_patched_in_the_job() -> None:
    world = World()
    world.reconcile()
    world.change(suspend=True, activeDeadlineSeconds=60)
    world.reconcile()
    reported = {name: world.job["spec"][name] for name in ("suspend", "activeDeadlineSeconds")}
    assert reported == {"suspend": True, "activeDeadlineSeconds": 60}
    assert (world.status["reason"], world.true()) == ("Suspended", ["Suspended"])


def test_kueue_says_when_a_job_in_its_queue_runs_and_only_a_pause_is_reported_beside_it() -> None:
    world = World(labels={QUEUE_LABEL: "cats"})
    world.reconcile()
    assert world.job["spec"]["suspend"] is True
    assert world.status["reason"] == "Queued"
    world.job["spec"]["suspend"] = False  # admitted
    world.reconcile()
    assert world.job["spec"]["suspend"] is False
    world.job["spec"]["suspend"] = True  # preempted
    world.reconcile()
    assert world.job["spec"]["suspend"] is True
    world.job["spec"]["suspend"] = False
    world.change(suspend=True)
    world.reconcile()
    assert world.job["spec"]["suspend"] is True


def test_what_others_wrote_into_a_job_is_put_right() -> None:
    world = World()
    world.reconcile()
    wanted = copy.deepcopy(world.job["spec"])
    world.job["spec"] |= {"parallelism": 0, "suspend": True}
    world.reconcile()
    assert world.job["spec"] == wanted


def test_a_job_that_comes_into_a_queue_later_is_shown_to_kueue() -> None:
    world = World({**MINIMAL, "suspend": True})
    world.reconcile()
    assert QUEUE_LABEL not in world.job["metadata"]["labels"]
    world.cluster.services[KEY]["metadata"]["labels"] = {QUEUE_LABEL: "cats"}
    world.change(suspend=False)
    world.reconcile()
    assert world.job["metadata"]["labels"][QUEUE_LABEL] == "cats"
    assert (world.job["spec"]["suspend"], world.status["reason"]) == (True, "Queued")


def test_waiting_job_is_reconciled_with_backoff_and_running_job_periodically() -> None:
    world = World()
    assert world.reconcile() is Outcome.WAITING  # the status is new
    assert world.reconcile() is Outcome.FAILED
    world.add_pod("pod-0", "Pending", state={"waiting": {"reason": "ContainerCreating"}})
    world.reconcile()
    assert world.reconcile() is Outcome.FAILED
    world.cluster.pods.clear()
    world.add_pod("pod-0")
    world.pods.progress = {"pod-0": said(1, 1)}
    world.reconcile()
    assert world.reconcile() is Outcome.WAITING


def test_pods_that_have_ended_do_not_start() -> None:
    world = World()
    world.reconcile()
    assert "kubectl describe job score" in world.status["message"]
    words = '{"shardsTotal":40,"bytesTotal":1,"before":{},"own":{"shards":40,"rows":400},"rowsPerSecond":1.5}'
    world.add_pod("pod-0", "Succeeded", state={"terminated": {"exitCode": 0, "message": words}})
    world.reconcile()
    assert (world.status["reason"], world.status["rows"]) == ("Running", 400)


def test_how_far_pods_are_is_reported_at_most_every_ten_seconds() -> None:
    world = World()
    world.reconcile()
    world.add_pod("pod-0")
    world.add_pod("pod-1")
    world.pods.progress = {"pod-0": said(3, 100), "pod-1": said(4, 200)}
    world.pods.left_s = 90.0
    world.reconcile()
    assert (world.status["reason"], world.true()) == ("Running", ["Running"])
    assert world.status["shards"] == {"done": 9, "total": 40, "text": "9/40"}
    assert [world.status[name] for name in ("rows", "failedRows", "rowsPerSecond")] == [320, 5, 200]
    assert world.status["estimatedEnd"] == "2026-11-23T06:02:00Z"
    world.pods.progress["pod-0"] = said(5, 150)
    world.now_s += 5
    world.reconcile()
    assert world.status["rows"] == 320
    world.now_s += 5
    world.reconcile()
    assert world.status["rows"] == 370


def test_numbers_do_not_fall_while_pods_begin_anew_and_nobody_has_a_pace_where_no_pod_runs() -> None:
    world = World()
    world.reconcile()
    world.add_pod("pod-0")
    world.pods.progress = {"pod-0": said(3, 100)}
    world.reconcile()
    world.change(suspend=True)
    world.cluster.pods.clear()
    world.reconcile()
    assert (world.status["rows"], world.status["rowsPerSecond"]) == (120, 0)
    world.change(suspend=False)
    world.add_pod("pod-0")
    world.pods.progress = {"pod-0": said(0, 0)}
    world.now_s += 20
    world.reconcile()
    assert (world.status["shards"]["text"], world.status["rows"], world.status["failedRows"]) == ("5/40", 120, 4)


def test_an_end_is_in_the_status_before_the_job_may_go_and_nothing_is_run_again() -> None:
    world = World({**MINIMAL, "ttlSecondsAfterFinished": 0})
    world.reconcile()
    assert "ttlSecondsAfterFinished" not in world.job["spec"]
    words = '{"shardsTotal":40,"bytesTotal":1,"before":{},"own":{"shards":40,"rows":400},"rowsPerSecond":1.5}'
    world.add_pod("pod-0", "Succeeded", state={"terminated": {"exitCode": 0, "message": words}})
    world.job["status"] = COMPLETE
    assert world.reconcile() is Outcome.DONE
    assert world.job["spec"]["ttlSecondsAfterFinished"] == 0
    assert world.cluster.writes.index(("merge", "Job")) > world.cluster.writes.index(("status", "score"))
    assert (world.status["reason"], world.status["rows"], world.true()) == ("Complete", 400, ["Complete"])
    world.lose_job()
    before = copy.deepcopy(world.status)
    assert world.reconcile() is Outcome.DONE
    assert world.status == before
    assert not world.cluster.children


def test_a_job_that_somebody_deleted_is_not_run_again() -> None:
    world = World()
    world.reconcile()
    world.lose_job()
    world.reconcile()
    assert (world.status["reason"], world.true()) == ("JobGone", ["Failed"])
    assert not world.cluster.children
    world.reconcile()
    assert not world.cluster.children


def terminated(code: int, message: str = "", reason: str = "Error") -> Json:
    return {"terminated": {"exitCode": code, "message": message, "reason": reason}}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (terminated(137, reason="OOMKilled"), "Raise runtime.resources.limits.memory"),
        (terminated(3, "no such file"), "could not load the model (exit code 3): no such file"),
        (
            terminated(
                1,
                '{"shardsTotal":2,"bytesTotal":9,"before":{},"own":{"rows":5},"rowsPerSecond":0,"message":"too many"}',
            ),
            "(exit code 1): too many",
        ),
        (terminated(1, '{"shardsTotal":-1'), '{"shardsTotal":-1'),
        (terminated(1, "\ud800"), "exit code 1"),
    ],
)
def test_a_failed_job_says_what_its_pods_said(state: Json, words: str) -> None:
    world = World()
    world.reconcile()
    world.add_pod(phase="Failed", state=state)
    world.job["status"] = FAILED
    world.reconcile()
    assert (world.status["reason"], world.true()) == ("JobFailed", ["Failed"])
    assert words in world.status["message"]
    assert "create it again" in world.status["message"]


def test_a_job_that_a_rule_ended_says_what_its_pod_said_alone() -> None:
    world = World()
    world.reconcile()
    world.add_pod(phase="Failed", state=terminated(2, "there is no column"))
    rule = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "matching FailJob rule"}
    world.job["status"] = {"conditions": [rule]}
    world.reconcile()
    assert "there is no column. Correct this" in world.status["message"]
    assert "FailJob" not in world.status["message"]


def test_another_ones_job_is_left_alone() -> None:
    world = World()
    theirs = {"metadata": {"name": "score", "uid": "x"}, "spec": {}}
    world.cluster.children[Key("default", "score"), JOB] = theirs
    assert world.reconcile() is Outcome.FAILED
    assert world.status["reason"] == "NameTaken"
    assert world.job is theirs


@pytest.mark.parametrize("own", [True, False])
def test_job_without_its_owner_reference_is_adopted_by_the_batch_that_created_it(own: bool) -> None:
    world = World()
    world.reconcile()
    world.job["metadata"] |= {"ownerReferences": [{"uid": "another"}], "resourceVersion": "1"}
    if not own:
        del world.status["jobName"]
    world.reconcile()

    owners = world.job["metadata"]["ownerReferences"]
    assert [each.get("controller", False) for each in owners] == ([False, True] if own else [False])
    assert (world.status["reason"] == "NameTaken") is not own


def test_pods_with_only_the_label_are_ignored() -> None:
    world = World()
    world.reconcile()
    world.add_pod("pod-0")
    world.cluster.pods[KEY][0]["metadata"]["ownerReferences"][0]["uid"] = "another"
    world.pods.progress = {"pod-0": said(3, 100)}
    world.reconcile()
    assert "rows" not in world.status


def test_what_is_not_allowed_is_not_made() -> None:
    strict = structs.replace(DEFAULTS, policy=Policy(images=()))
    world = World({**MINIMAL, "runtime": {"image": "evil:1"}}, defaults=strict)
    world.reconcile()
    assert world.status["reason"] == "NotAllowed"
    assert "spec.runtime.image" in world.status["message"]
    assert not world.cluster.children


KEY_OF_ANOTHER = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "database", "key": "password"}}}


@pytest.mark.parametrize("engine", ["Job", "Ray"])
@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"pod": {"serviceAccountName": "admin"}}, "spec.pod.serviceAccountName 'admin'"),
        ({"pod": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}, "spec.pod.volumes[v] 'hostPath'"),
        ({"pod": {"priorityClassName": "first"}}, "spec.pod.priorityClassName 'first'"),
        ({"pod": {"containers": [{"name": "a", "image": "evil:1"}]}}, "spec.pod.containers[a].image 'evil:1'"),
        ({"pod": {"securityContext": {"runAsUser": 0}}}, "spec.pod.securityContext.runAsUser"),
        ({"runtime": {"env": [KEY_OF_ANOTHER]}}, "spec.runtime.env[0].valueFrom.secretKeyRef.name 'database'"),
        ({"secretName": "database"}, "spec.secretName 'database'"),
        ({"model": {"uri": "s3://bucket/model", "secretName": "database"}}, "spec.model.secretName 'database'"),
    ],
)
def test_a_job_reaches_no_more_than_a_service_does(asked: Json, field: str, engine: str) -> None:
    strict = structs.replace(DEFAULTS, policy=Policy(images=()))
    runtime = {"image": "ray:1", **asked.get("runtime", {})}
    world = World({**MINIMAL, **asked, "runtime": runtime, "engine": engine}, defaults=strict)
    world.reconcile()
    assert world.status["reason"] == "NotAllowed"
    assert field in world.status["message"]
    assert not world.cluster.children


def test_ray_without_kuberay_says_what_to_install() -> None:
    world = World(RAY)
    world.refusal = ApiError(404, "the server could not find the requested resource")
    assert world.reconcile() is Outcome.FAILED
    assert world.status["reason"] == "KubeRayMissing"
    assert "install" in world.status["message"]


@pytest.mark.parametrize(
    ("reported", "reason"),
    [
        ({"jobDeploymentStatus": "Initializing"}, "Starting"),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, "Complete"),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "FAILED", "message": "worker 1"}, "JobFailed"),
        ({"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"}, "JobFailed"),
        ({"jobDeploymentStatus": "ValidationFailed", "message": "bad"}, "JobFailed"),
    ],
)
def test_a_ray_job_reports_its_end(reported: Json, reason: str) -> None:
    world = World(RAY)
    world.reconcile()
    world.job["status"] = reported
    world.reconcile()
    assert world.status["reason"] == reason


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["model", "input", "output", "runtime", "engine", "pod", "secretName", "parallelism", "suspend"]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(FIELDS, HOSTILE, max_size=4))
def test_every_reconciliation_ends_in_a_status(change: Json) -> None:
    world = World({**MINIMAL, **change})
    world.reconcile()
    assert world.status["reason"]
    assert len(world.status["conditions"]) == 4
