"""Conditions of a rollout that does not finish, and of old pods that serve."""

from typing import Any

import pytest

from shoal_operator.children.conditions import Condition
from shoal_operator.manifests.desired import DEPLOYMENT
from shoal_operator.status.conditions import evaluate_conditions
from shoal_operator.status.events import transitions
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.status import make_status
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status
from tests.operator.samples import MINIMAL, with_fields
from tests.operator.worlds import evidence, healthy, pod, running, waiting

OLD = pod(with_fields(MINIMAL, model={"uri": "file:///models/old"}))
LOADING = pod(ready=False, containerStatuses=[running("runtime") | {"ready": True}, running("proxy")])
CRASHED = pod(ready=False, containerStatuses=[waiting("runtime", "CrashLoopBackOff", exitCode=3, message="bad file")])
ROLLING = {"replicas": 2, "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1}
EXCEEDED = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
PAUSED = {"type": "Progressing", "status": "Unknown", "reason": "DeploymentPaused"}
OVER_QUOTA = {
    "type": "ReplicaFailure",
    "status": "True",
    "reason": "FailedCreate",
    "message": (
        'pods "cat-5d9c7b4f-x2x9v" is forbidden: exceeded quota: compute, requested: limits.cpu=3,'
        " used: limits.cpu=8, limited: limits.cpu=10"
    ),
}


def condition(seen: Evidence, kind: ConditionType) -> Condition:
    return next(item for item in evaluate_conditions(seen) if item.type is kind)


def stuck(*pods: Json, said: Json, **counts: Any) -> Evidence:
    return evidence(None, *pods, deployment={**ROLLING, **counts, "conditions": [said]})


def paused(*pods: Json, **counts: Any) -> Evidence:
    seen = stuck(*pods, said=PAUSED, **counts)
    seen.observation.children[DEPLOYMENT]["spec"]["paused"] = True
    return seen


def test_a_rollout_past_its_deadline_is_no_rollout_that_goes_on() -> None:
    seen = stuck(OLD, LOADING, said=EXCEEDED)

    for kind in (ConditionType.READY, ConditionType.PROGRESSING, ConditionType.MODEL_LOADED):
        said = condition(seen, kind)
        assert (said.status, said.reason) == (Status.FALSE, Reason.PROGRESS_DEADLINE_EXCEEDED), kind
        assert "rollout.progressDeadlineSeconds" in said.message
        assert "not ready: proxy" in said.message


def test_a_rollout_past_its_deadline_says_how_its_pods_end() -> None:
    seen = stuck(OLD, CRASHED, said=EXCEEDED)

    assert condition(seen, ConditionType.READY).reason is Reason.RUNTIME_CRASHED
    assert "bad file" in condition(seen, ConditionType.READY).message


def test_a_failed_rollout_is_announced_once_as_a_warning() -> None:
    before = make_status(evidence(None, OLD, LOADING, deployment=ROLLING), "2026-01-01T00:00:00Z")["conditions"]
    after = make_status(stuck(OLD, LOADING, said=EXCEEDED), "2026-01-01T00:10:00Z")["conditions"]
    (news,) = transitions(before, after)

    assert (news.warning, news.reason) == (True, "ProgressDeadlineExceeded")
    assert transitions(after, after) == []


@pytest.mark.parametrize("seen", [stuck(OLD, LOADING, said=EXCEEDED), stuck(OLD, CRASHED, said=EXCEEDED), paused(OLD)])
def test_old_pods_that_serve_on_leave_the_service_available_and_say_that_they_are_old(seen: Evidence) -> None:
    available = condition(seen, ConditionType.AVAILABLE)

    assert (available.status, available.reason) == (Status.TRUE, Reason.SERVED_BY_OLD_PODS)


def test_during_a_rollout_a_new_pod_that_answers_is_the_service() -> None:
    available = condition(evidence(None, OLD, pod(), deployment=ROLLING), ConditionType.AVAILABLE)

    assert (available.status, available.reason) == (Status.TRUE, Reason.AVAILABLE)


def test_a_paused_deployment_says_how_it_goes_on() -> None:
    seen = paused(OLD, replicas=1, updatedReplicas=0)

    for kind in (ConditionType.READY, ConditionType.PROGRESSING, ConditionType.MODEL_LOADED):
        said = condition(seen, kind)
        assert (said.status, said.reason) == (Status.FALSE, Reason.ROLLOUT_PAUSED), kind
        assert "kubectl rollout resume deployment/cat" in said.message


def test_a_deployment_that_was_paused_before_its_first_pod_says_so_too() -> None:
    seen = paused(replicas=0, updatedReplicas=0, availableReplicas=0)

    assert condition(seen, ConditionType.READY).reason is Reason.ROLLOUT_PAUSED
    assert condition(seen, ConditionType.AVAILABLE).status is Status.FALSE


def test_a_pause_after_the_rollout_harms_nobody() -> None:
    seen = paused(pod(), **healthy())

    assert condition(seen, ConditionType.READY).status is Status.TRUE
    assert condition(seen, ConditionType.PROGRESSING).reason is Reason.COMPLETE


def test_a_quota_that_refuses_pods_is_reported_in_its_own_words_without_the_random_name_of_a_pod() -> None:
    seen = stuck(OLD, said=OVER_QUOTA, replicas=1, updatedReplicas=0)
    said = condition(seen, ConditionType.READY)

    assert (said.status, said.reason) == (Status.FALSE, Reason.PODS_REFUSED)
    assert "exceeded quota: compute, requested: limits.cpu=3" in said.message
    assert "x2x9v" not in said.message
    assert "raise the quota" in said.message


def test_a_quota_on_limits_names_the_fields_that_give_them() -> None:
    message = 'pods "cat-5d9c7b4f-x2x9v" is forbidden: failed quota: q: must specify limits.cpu for: runtime'
    said = condition(stuck(said={**OVER_QUOTA, "message": message}), ConditionType.PROGRESSING)

    assert "must specify limits.cpu for: runtime" in said.message
    assert "runtime.resources" in said.message


def test_a_quota_that_only_keeps_a_served_spec_from_scaling_leaves_it_ready() -> None:
    counts = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
    spec = with_fields(MINIMAL, replicas=2)
    seen = evidence(spec, pod(spec), deployment={**counts, "conditions": [OVER_QUOTA]})

    assert condition(seen, ConditionType.READY).status is Status.TRUE
    assert condition(seen, ConditionType.PROGRESSING).reason is Reason.PODS_REFUSED


@pytest.mark.parametrize("said", [EXCEEDED, OVER_QUOTA], ids=["deadline", "quota"])
def test_condition_of_an_older_generation_is_not_reported(said: Json) -> None:
    seen = stuck(OLD, said=said, observedGeneration=0)

    assert condition(seen, ConditionType.READY).reason is Reason.ROLLING_OUT
    assert condition(seen, ConditionType.PROGRESSING).reason is Reason.ROLLING_OUT


def refused(*pods: Json, newest: str) -> Evidence:
    progressing = {"type": "Progressing", "status": "True", "message": f'Created new replica set "{newest}"'}
    return evidence(None, *pods, deployment={**ROLLING, "conditions": [OVER_QUOTA, progressing]})


def test_rejection_is_reported_only_for_the_newest_template() -> None:
    now = condition(refused(newest="cat-5d9c7b4f"), ConditionType.PROGRESSING)
    later = condition(refused(newest="cat-66f7"), ConditionType.PROGRESSING)

    assert (now.reason, later.reason) == (Reason.PODS_REFUSED, Reason.PODS_REFUSED)
    assert "exceeded quota" in now.message
    assert "exceeded quota" not in later.message
    assert "kubectl describe replicaset cat-66f7 " in later.message


def test_a_refusal_that_is_over_hides_nothing_of_the_pods_that_came_after_it() -> None:
    assert condition(refused(CRASHED, newest="cat-66f7"), ConditionType.PROGRESSING).reason is Reason.RUNTIME_CRASHED
    assert condition(refused(CRASHED, newest="cat-5d9c7b4f"), ConditionType.PROGRESSING).reason is Reason.PODS_REFUSED
