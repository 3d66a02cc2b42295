"""Status: what is true, why, and when it is announced."""

import dataclasses
from typing import Any

import pytest

from shoal_operator.children.changes import Conflict, plan_changes
from shoal_operator.children.observation import Failure, Observation
from shoal_operator.errors import ApiError
from shoal_operator.manifests.desired import DEPLOYMENT, HPA, HTTP_ROUTE, INGRESS, SCALED_OBJECT, SERVICE, Child
from shoal_operator.manifests.target import Hosting
from shoal_operator.scaling.decision import ScalingLimit
from shoal_operator.scaling.report import NoLoad, ScalingReport
from shoal_operator.status.conditions import evaluate_conditions
from shoal_operator.status.events import transitions
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.status import make_status, plain_status, unread_status
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, ScalingReason, Status
from tests.operator.samples import BY_HPA, BY_KEDA, DOWNLOADED, EVERYTHING, MINIMAL, service, target, with_fields
from tests.operator.worlds import children, evidence, healthy, pod, running, unschedulable, waiting

NOW = "2026-01-01T00:00:00Z"
CRASHED = pod(
    ready=False,
    containerStatuses=[waiting("runtime", "CrashLoopBackOff", exitCode=3, message="bad file")],
)
OLD = pod(with_fields(MINIMAL, model={"uri": "file:///models/old"}))


def conditions(seen: Evidence) -> dict[ConditionType, tuple[Status, Reason]]:
    return {ConditionType(item.type): (item.status, item.reason) for item in evaluate_conditions(seen)}


def test_a_service_whose_pods_are_ready_is_ready() -> None:
    assert conditions(evidence(None, pod(), deployment=healthy())) == {
        ConditionType.READY: (Status.TRUE, Reason.READY),
        ConditionType.AVAILABLE: (Status.TRUE, Reason.AVAILABLE),
        ConditionType.PROGRESSING: (Status.TRUE, Reason.COMPLETE),
        ConditionType.MODEL_LOADED: (Status.TRUE, Reason.MODEL_LOADED),
        ConditionType.ROUTE_READY: (Status.TRUE, Reason.CLUSTER_INTERNAL),
    }


def test_a_new_service_is_rolling_out_and_loading() -> None:
    starting = {"replicas": 1, "updatedReplicas": 1}
    seen = conditions(evidence(None, pod(ready=False), deployment=starting))

    assert seen[ConditionType.READY] == (Status.FALSE, Reason.PODS_NOT_READY)
    assert seen[ConditionType.AVAILABLE] == (Status.FALSE, Reason.PODS_NOT_READY)
    assert seen[ConditionType.PROGRESSING] == (Status.TRUE, Reason.SCALING_UP)
    assert seen[ConditionType.MODEL_LOADED] == (Status.FALSE, Reason.MODEL_LOADING)


@pytest.mark.parametrize("ready", [True, False])
def test_where_a_proxy_that_runs_and_is_not_ready_reports_why_is_named(ready: bool) -> None:
    states = [{**running("proxy"), "ready": ready}, {**running("runtime"), "ready": True}]
    late = {"conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]}
    starting = {"replicas": 1, "updatedReplicas": 1}
    for deployment in (starting, {**starting, **late}):
        found = evaluate_conditions(evidence(None, pod(ready=False, containerStatuses=states), deployment=deployment))
        reported = next(item.message for item in found if item.type is ConditionType.READY)
        assert ("--container proxy shows why" in reported) is not ready


CREATING = waiting("proxy", "ContainerCreating")


@pytest.mark.parametrize(
    ("fields", "proxy", "words"),
    [
        (
            {"access": {"apiKeys": {"secretName": "callers"}}},
            CREATING,
            "the Secret callers of access.apiKeys: kubectl describe",
        ),
        (
            {"access": {"apiKeys": {"secretName": "callers"}}},
            running("proxy"),
            "Secret callers of access.apiKeys must contain",
        ),
        (
            {"tls": {"secretName": "pair"}},
            CREATING,
            "Pods mount the Secret pair of tls.secretName: kubectl describe",
        ),
        (
            {"pod": {"volumes": [{"name": "a", "configMap": {"name": "words"}}, {"name": "b", "emptyDir": {}}]}},
            CREATING,
            "Pods mount the configMap words of pod.volumes: kubectl describe pods",
        ),
        ({}, CREATING, "no pod is ready yet. kubectl logs"),
    ],
)
def test_what_a_pod_waits_for_is_named(fields: Json, proxy: Json, words: str) -> None:
    spec = {**MINIMAL, **fields}
    states = [{**proxy, "ready": False}, waiting("runtime", "ContainerCreating")]
    starting = {"replicas": 1, "updatedReplicas": 1}
    found = evaluate_conditions(evidence(spec, pod(spec, ready=False, containerStatuses=states), deployment=starting))

    reported = {item.type: item.message for item in found}
    assert words in reported[ConditionType.READY]
    assert words in reported[ConditionType.AVAILABLE]


@pytest.mark.parametrize("node", ["", "node-1"])
def test_a_scheduler_that_places_nothing_is_named(node: str) -> None:
    spec = {**MINIMAL, "pod": {"schedulerName": "absent"}}
    waits = pod(spec, ready=False)
    waits["spec"]["nodeName"] = node
    found = evaluate_conditions(evidence(spec, waits, deployment={"replicas": 1, "updatedReplicas": 1}))

    reported = {item.type: item.message for item in found}
    assert ("The scheduler absent (pod.schedulerName)" in reported[ConditionType.READY]) is (not node)


def test_a_crash_on_load_is_reported_everywhere_with_its_last_message() -> None:
    starting = {"replicas": 1, "updatedReplicas": 1}
    seen = evidence(None, CRASHED, deployment=starting)

    for kind in (ConditionType.READY, ConditionType.PROGRESSING, ConditionType.MODEL_LOADED):
        assert conditions(seen)[kind] == (Status.FALSE, Reason.RUNTIME_CRASHED)
    assert all(
        "bad file" in item.message for item in evaluate_conditions(seen) if item.reason is Reason.RUNTIME_CRASHED
    )


def test_during_a_rollout_the_service_is_available_and_not_ready() -> None:
    old = pod(with_fields(MINIMAL, model={"uri": "file:///models/old"}))
    rolling = {"replicas": 2, "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1}
    seen = conditions(evidence(None, old, pod(ready=False), deployment=rolling))

    assert seen[ConditionType.AVAILABLE] == (Status.TRUE, Reason.SERVED_BY_OLD_PODS)
    assert seen[ConditionType.READY] == (Status.FALSE, Reason.ROLLING_OUT)
    assert seen[ConditionType.MODEL_LOADED] == (Status.FALSE, Reason.MODEL_LOADING)


def test_a_rollout_that_crashes_leaves_the_old_pods_available() -> None:
    old = pod(with_fields(MINIMAL, model={"uri": "file:///models/old"}))
    rolling = {"replicas": 2, "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1}
    seen = conditions(evidence(None, old, CRASHED, deployment=rolling))

    assert seen[ConditionType.AVAILABLE] == (Status.TRUE, Reason.SERVED_BY_OLD_PODS)
    assert seen[ConditionType.READY] == (Status.FALSE, Reason.RUNTIME_CRASHED)


@pytest.mark.parametrize("pods", [[OLD], [OLD, pod()], []], ids=["old", "both", "none"])
def test_a_new_spec_that_the_deployment_has_not_seen_is_rolling_out(pods: list[Json]) -> None:
    seen = evidence(None, *pods, deployment={**healthy(), "observedGeneration": 0})

    assert conditions(seen)[ConditionType.READY] == (Status.FALSE, Reason.ROLLING_OUT)


@pytest.mark.parametrize(
    ("wanted", "deployment", "progressing"),
    [
        (3, {**healthy(1), "observedGeneration": 0}, Reason.SCALING_UP),
        (3, {**healthy(3), "readyReplicas": 1, "availableReplicas": 1}, Reason.SCALING_UP),
        (1, {**healthy(3), "observedGeneration": 0}, Reason.COMPLETE),
        (1, healthy(3), Reason.COMPLETE),
    ],
    ids=["more", "more-seen", "fewer", "fewer-seen"],
)
def test_other_replicas_of_the_same_spec_leave_a_service_ready_and_announce_nothing(
    wanted: int, deployment: Json, progressing: Reason
) -> None:
    before = make_status(evidence(None, pod(), deployment=healthy()), "2026-01-01T00:00:00Z")["conditions"]
    seen = evidence(with_fields(MINIMAL, replicas=wanted), pod(), deployment=deployment)

    assert conditions(seen)[ConditionType.READY] == (Status.TRUE, Reason.READY)
    assert conditions(seen)[ConditionType.PROGRESSING] == (Status.TRUE, progressing)
    assert transitions(before, make_status(seen, "2026-01-01T00:00:01Z")["conditions"]) == []


def test_the_last_pod_of_a_service_that_goes_while_more_are_started_is_reported() -> None:
    seen = evidence(
        with_fields(MINIMAL, replicas=3),
        pod(ready=False),
        deployment={**healthy(1), "readyReplicas": 0, "availableReplicas": 0, "observedGeneration": 0},
    )

    assert conditions(seen)[ConditionType.READY] == (Status.FALSE, Reason.PODS_NOT_READY)


def test_more_pods_than_the_cluster_holds_slow_scaling_and_leave_the_service_ready() -> None:
    spec = with_fields(DOWNLOADED, replicas=2)
    pending = pod(spec, ready=False, conditions=unschedulable("1 Insufficient nvidia.com/gpu"))
    counts = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 1, "availableReplicas": 1}
    seen = conditions(evidence(spec, pod(spec), pending, deployment=counts))

    assert seen[ConditionType.READY] == (Status.TRUE, Reason.READY)
    assert seen[ConditionType.PROGRESSING] == (Status.FALSE, Reason.INSUFFICIENT_GPU)


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ({"type": "ReplicaFailure", "status": "True", "message": "quota"}, Reason.PODS_REFUSED),
        (
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},
            Reason.PROGRESS_DEADLINE_EXCEEDED,
        ),
    ],
)
def test_what_the_deployment_reports_is_passed_on(condition: Json, reason: Reason) -> None:
    seen = evidence(None, deployment={"conditions": [condition]})

    assert conditions(seen)[ConditionType.PROGRESSING] == (Status.FALSE, reason)


def test_a_parked_service_says_how_to_start_it() -> None:
    seen = evaluate_conditions(evidence(with_fields(MINIMAL, replicas=0), deployment={"replicas": 0}))
    ready = next(item for item in seen if item.type is ConditionType.READY)

    assert (ready.status, ready.reason) == (Status.FALSE, Reason.PARKED)
    assert "kubectl scale infsvc/cat --namespace default --replicas=1 starts" in ready.message


@pytest.mark.parametrize("scaling", [None, {"minReplicas": 0, "maxReplicas": 2}])
def test_a_deployment_that_another_writer_set_to_zero_names_it(scaling: Json | None) -> None:
    seen = evidence({**MINIMAL, **({"scaling": scaling} if scaling else {})}, deployment={"replicas": 0})
    seen.observation.children[DEPLOYMENT]["spec"]["replicas"] = 0
    entry = {"manager": "kubectl", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    seen.observation.children[DEPLOYMENT]["metadata"]["managedFields"] = [entry]
    available = next(item for item in evaluate_conditions(seen) if item.type is ConditionType.AVAILABLE)

    assert (available.status, available.reason) == (Status.FALSE, Reason.ANOTHER_SCALER)
    assert "'kubectl'" in available.message


def test_a_spec_that_cannot_be_read_leaves_what_runs_as_it_is() -> None:
    resource = service({}) | {"status": {"url": "http://old"}}
    observation = Observation(resource, children(None, **healthy()), (pod(),))
    seen = Evidence(observation=observation, target=None, spec_error="spec.model is required")

    status = make_status(seen, NOW)

    assert conditions(seen)[ConditionType.READY] == (Status.FALSE, Reason.INVALID_SPEC)
    assert conditions(seen)[ConditionType.AVAILABLE] == (Status.TRUE, Reason.AVAILABLE)
    assert (status["url"], status["readyReplicas"]) == ("http://old", 1)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(422, Reason.INVALID_SPEC), (400, Reason.INVALID_SPEC), (403, Reason.APPLY_FAILED), (0, Reason.APPLY_FAILED)],
)
def test_rejected_write_is_reported_with_the_servers_message(code: int, reason: Reason) -> None:
    seen = evidence(None, failures=(Failure(DEPLOYMENT, code, "unknown field affinitie"),))
    ready = next(item for item in evaluate_conditions(seen) if item.type is ConditionType.READY)

    assert ready.reason is reason
    assert ready.message == "Deployment: unknown field affinitie"


@pytest.mark.parametrize("code", [400, 422])
def test_what_is_wrong_with_the_spec_is_reported_before_any_other_refusal(code: int) -> None:
    failures = Failure(SERVICE, 403, "forbidden"), Failure(DEPLOYMENT, code, "unknown field affinitie")
    ready = next(
        item for item in evaluate_conditions(evidence(None, failures=failures)) if item.type is ConditionType.READY
    )

    assert (ready.reason, ready.message) == (Reason.INVALID_SPEC, "Deployment: unknown field affinitie")


@pytest.mark.parametrize(
    ("stale", "reason"),
    [(False, Reason.NAME_TAKEN), (True, Reason.WAITING_FOR_CLEANUP)],
)
def test_an_object_in_the_way_is_named(stale: bool, reason: Reason) -> None:
    seen = evidence(None, conflicts=(Conflict(SERVICE, "cat", stale=stale),))
    ready = next(item for item in evaluate_conditions(seen) if item.type is ConditionType.READY)

    assert ready.reason is reason
    assert "Service cat" in ready.message


def without(seen: Evidence, kind: Child) -> Evidence:
    """Return the evidence where an object was never made."""
    children = {other: body for other, body in seen.observation.children.items() if other != kind}
    return dataclasses.replace(seen, observation=dataclasses.replace(seen.observation, children=children))


def test_nothing_is_said_of_a_route_that_no_readable_spec_asks_for() -> None:
    no_load_reason = Evidence(
        observation=Observation(service({}), {}, ()), target=None, spec_error="spec.model is required"
    )
    later = dataclasses.replace(evidence(None, pod(), deployment=healthy()), target=None, spec_error="no")

    seen = conditions(no_load_reason)
    assert conditions(later)[ConditionType.ROUTE_READY] == (Status.UNKNOWN, Reason.INVALID_SPEC)
    assert seen[ConditionType.ROUTE_READY] == (Status.FALSE, Reason.INVALID_SPEC)
    assert seen[ConditionType.MODEL_LOADED] == (Status.FALSE, Reason.INVALID_SPEC)
    assert len(transitions([], make_status(no_load_reason, NOW)["conditions"])) == 1


def test_the_route_of_an_older_spec_is_still_told_of() -> None:
    old = evidence(INGRESS_SPEC, pod(INGRESS_SPEC), deployment=healthy())
    old.observation.children[INGRESS]["status"] = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}
    no_load_reason = dataclasses.replace(old, target=None, spec_error="no")

    assert conditions(no_load_reason)[ConditionType.ROUTE_READY] == (Status.TRUE, Reason.ROUTE_ACCEPTED)


@pytest.mark.parametrize(("code", "reason"), [(422, Reason.INVALID_SPEC), (403, Reason.APPLY_FAILED)])
def test_what_depends_on_an_object_that_was_refused_is_not_there(code: int, reason: Reason) -> None:
    whole = evidence(None, deployment={})
    no_service = dataclasses.replace(without(whole, SERVICE), failures=(Failure(SERVICE, code, "no"),))
    no_pods = dataclasses.replace(without(whole, DEPLOYMENT), failures=(Failure(DEPLOYMENT, code, "no"),))

    assert conditions(no_service)[ConditionType.ROUTE_READY] == (Status.FALSE, reason)
    assert conditions(no_pods)[ConditionType.MODEL_LOADED] == (Status.FALSE, reason)
    assert conditions(no_pods)[ConditionType.AVAILABLE] == (Status.FALSE, reason)
    kept = dataclasses.replace(whole, failures=(Failure(SERVICE, code, "no"),))
    assert conditions(kept)[ConditionType.ROUTE_READY] == (Status.TRUE, Reason.CLUSTER_INTERNAL)


def test_a_service_whose_name_is_taken_is_not_reached_inside_the_cluster() -> None:
    seen = dataclasses.replace(
        without(evidence(None, deployment={}), SERVICE), conflicts=(Conflict(SERVICE, "cat", stale=False),)
    )

    assert conditions(seen)[ConditionType.ROUTE_READY] == (Status.FALSE, Reason.NAME_TAKEN)
    assert make_status(seen, "2026-01-01T00:00:00Z")["url"] == "", "the name leads to another owner's pods"


@pytest.mark.parametrize(
    ("open_endpoints", "expected"), [(1, (Status.TRUE, Reason.AVAILABLE)), (0, (Status.FALSE, Reason.NAME_TAKEN))]
)
def test_pods_of_a_deployment_that_was_taken_away_are_available_as_long_as_they_answer(
    open_endpoints: int, expected: Any
) -> None:
    whole = evidence(None, pod(), deployment=healthy())
    owner = {"uid": whole.observation.children[SERVICE]["metadata"]["uid"], "controller": True}
    endpoints = [{"conditions": {"ready": True}}] * open_endpoints
    slices = ({"metadata": {"ownerReferences": [owner]}, "endpoints": endpoints},)
    orphan = dataclasses.replace(whole, observation=dataclasses.replace(whole.observation, slices=slices))
    for field in ("ownerReferences", "labels"):
        del orphan.observation.children[DEPLOYMENT]["metadata"][field]
    plan = plan_changes(target(), orphan.observation.children)

    seen = conditions(dataclasses.replace(orphan, conflicts=plan.conflicts))
    assert seen[ConditionType.AVAILABLE] == expected
    assert seen[ConditionType.READY] == (Status.FALSE, Reason.NAME_TAKEN)


def test_owner_that_is_no_controller_is_reported() -> None:
    seen = evidence(None, pod(), deployment=healthy())
    (reference,) = seen.observation.children[DEPLOYMENT]["metadata"]["ownerReferences"]
    del reference["controller"]
    del seen.observation.children[DEPLOYMENT]["metadata"]["labels"]
    plan = plan_changes(target(), seen.observation.children)
    reported = evaluate_conditions(dataclasses.replace(seen, conflicts=plan.conflicts))

    message = next(item.message for item in reported if item.type is ConditionType.READY)
    assert "Deployment cat" in message
    assert "controller: true" in message


INGRESS_SPEC = with_fields(MINIMAL, route={"ingress": {"host": "a.example.com"}})
GATEWAY_SPEC = with_fields(MINIMAL, route={"httpRoute": {"parentRefs": [{"name": "g"}]}})
ACCEPTED = {"parents": [{"conditions": [{"type": "Accepted", "status": "True"}]}]}
REFUSED = {"parents": [{"conditions": [{"type": "Accepted", "status": "False", "message": "no listener"}]}]}


@pytest.mark.parametrize(
    ("spec", "kind", "status", "expected"),
    [
        (INGRESS_SPEC, INGRESS, {}, (Status.UNKNOWN, Reason.ROUTE_PENDING)),
        (
            INGRESS_SPEC,
            INGRESS,
            {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}},
            (Status.TRUE, Reason.ROUTE_ACCEPTED),
        ),
        (GATEWAY_SPEC, HTTP_ROUTE, {}, (Status.UNKNOWN, Reason.ROUTE_PENDING)),
        (GATEWAY_SPEC, HTTP_ROUTE, ACCEPTED, (Status.TRUE, Reason.ROUTE_ACCEPTED)),
        (GATEWAY_SPEC, HTTP_ROUTE, REFUSED, (Status.FALSE, Reason.ROUTE_REFUSED)),
    ],
)
def test_a_route_is_what_its_controller_says(spec: Json, kind: Any, status: Json, expected: Any) -> None:
    seen = evidence(spec, pod(spec), deployment=healthy())
    seen.observation.children[kind]["status"] = status

    assert conditions(seen)[ConditionType.ROUTE_READY] == expected
    refused = expected[0] is Status.FALSE
    assert conditions(seen)[ConditionType.READY][0] is (Status.FALSE if refused else Status.TRUE)


@pytest.mark.parametrize(("spec", "kind"), [(INGRESS_SPEC, INGRESS), (GATEWAY_SPEC, HTTP_ROUTE)])
def test_a_route_of_somebody_else_is_none_of_ours_whatever_its_controller_says(spec: Json, kind: Any) -> None:
    seen = evidence(spec, pod(spec), deployment=healthy(), conflicts=(Conflict(kind, "cat", stale=False),))
    route = seen.observation.children[kind]
    route["metadata"]["ownerReferences"] = []
    route["status"] = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}, **ACCEPTED}

    assert conditions(seen)[ConditionType.ROUTE_READY] == (Status.FALSE, Reason.NAME_TAKEN)


def test_a_missing_gateway_api_says_what_to_install() -> None:
    seen = evidence(GATEWAY_SPEC, pod(GATEWAY_SPEC), deployment=healthy(), failures=(Failure(HTTP_ROUTE, 404, "?"),))

    assert conditions(seen)[ConditionType.ROUTE_READY] == (Status.FALSE, Reason.GATEWAY_API_MISSING)
    assert conditions(seen)[ConditionType.READY] == (Status.FALSE, Reason.GATEWAY_API_MISSING)
    assert conditions(seen)[ConditionType.PROGRESSING] == (Status.TRUE, Reason.COMPLETE)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Reason.FOLLOWING_LOAD, Status.TRUE),
        (Reason.NO_LOAD_DATA, Status.FALSE),
    ],
)
def test_scaling_is_reported_and_does_not_make_a_service_unready(reason: ScalingReason, status: Status) -> None:
    spec = with_fields(MINIMAL, scaling={"maxReplicas": 4})
    seen = conditions(evidence(spec, pod(spec), deployment=healthy(), scaling=ScalingReport(reason)))

    assert seen[ConditionType.SCALING_ACTIVE] == (status, reason)
    assert seen[ConditionType.READY] == (Status.TRUE, Reason.READY)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (NoLoad.NO_READY_POD, "no pod is ready"),
        (NoLoad.UNREACHABLE, "NetworkPolicy"),
        (NoLoad.REFUSED, "proxy.image"),
    ],
)
def test_which_cause_there_is_no_load_data_for_is_reported(why: NoLoad, said: str) -> None:
    spec = with_fields(MINIMAL, scaling={"maxReplicas": 2})
    reported = evaluate_conditions(
        evidence(spec, pod(), deployment=healthy(), scaling=ScalingReport(Reason.NO_LOAD_DATA, why))
    )
    scaling = next(item for item in reported if item.type is ConditionType.SCALING_ACTIVE)

    assert (scaling.status, scaling.reason) == (Status.FALSE, Reason.NO_LOAD_DATA)
    assert said in scaling.message


def test_why_there_are_so_many_replicas_is_reported_and_what_keeps_them_from_being_more() -> None:
    spec = with_fields(MINIMAL, scaling={"maxReplicas": 4})
    words = "4 replicas: 118 rows in flight, 32 per replica, stable window"
    for limit, reason in (
        (ScalingLimit.MAXIMUM, Reason.AT_MAX_REPLICAS),
        (ScalingLimit.CAPACITY, Reason.NO_FREE_CAPACITY),
    ):
        scaling = ScalingReport(Reason.FOLLOWING_LOAD, sentence=words, limit=limit)
        reported = {
            item.type: item
            for item in evaluate_conditions(evidence(spec, pod(spec), deployment=healthy(), scaling=scaling))
        }

        assert reported[ConditionType.SCALING_ACTIVE].message == words
        assert reported[ConditionType.SCALING_LIMITED].status is Status.TRUE
        assert reported[ConditionType.SCALING_LIMITED].reason is reason
        assert reported[ConditionType.READY].status is Status.TRUE

    free = evaluate_conditions(
        evidence(spec, pod(spec), deployment=healthy(), scaling=ScalingReport(Reason.FOLLOWING_LOAD))
    )
    assert ConditionType.SCALING_LIMITED not in {item.type for item in free}


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("kube-controller-manager", "'kube-controller-manager' (an HPA)"),
        ("deployer", "'deployer'"),
        ("", "another writer"),
    ],
)
def test_other_writer_of_replicas_is_reported_with_a_remedy(name: str, who: str) -> None:
    spec = with_fields(MINIMAL, scaling={"maxReplicas": 4})
    scaling = ScalingReport(Reason.FOLLOWING_LOAD, sentence="3 replicas: 0 rows in flight", conflicting_writer=name)
    reported = {
        item.type: item
        for item in evaluate_conditions(evidence(spec, pod(spec), deployment=healthy(), scaling=scaling))
    }
    active = reported[ConditionType.SCALING_ACTIVE]

    assert (active.status, active.reason) == (Status.FALSE, Reason.ANOTHER_SCALER)
    assert who in active.message
    assert "scaling.mode: External" in active.message
    assert active.message.endswith("3 replicas: 0 rows in flight")
    assert reported[ConditionType.READY].status is Status.TRUE


def test_service_at_zero_keeps_no_earlier_scaling_message() -> None:
    spec = with_fields(MINIMAL, replicas=0, scaling={"minReplicas": 0, "maxReplicas": 4})
    old = {"type": "ScalingActive", "status": "True", "reason": "FollowingLoad", "message": "1 replica: 0 rows"}
    seen = evidence(spec, deployment=healthy(0), stored={"conditions": [old]})
    assert seen.target is not None
    hosting = Hosting(20000, ("10.0.0.9",), open=True)
    asleep = dataclasses.replace(seen, target=dataclasses.replace(seen.target, hosting=hosting))
    reported = next(item for item in evaluate_conditions(asleep) if item.type is ConditionType.SCALING_ACTIVE)

    assert (reported.status, reported.reason) == (Status.TRUE, Reason.FOLLOWING_LOAD)
    assert reported.message.startswith("0 replicas: no requests")


def test_scaling_by_another_is_reported_as_such_whatever_was_said_before() -> None:
    spec = with_fields(MINIMAL, scaling={"mode": "External", "maxReplicas": 4})
    for scaling in (None, ScalingReport(Reason.FOLLOWING_LOAD)):
        seen = conditions(evidence(spec, pod(spec), deployment=healthy(), scaling=scaling))

        assert seen[ConditionType.SCALING_ACTIVE] == (Status.UNKNOWN, Reason.EXTERNAL)


@pytest.mark.parametrize(
    ("spec", "kind", "failures", "status", "expected"),
    [
        (BY_HPA, HPA, [], {}, (Status.UNKNOWN, Reason.EXTERNAL)),
        (BY_HPA, HPA, [], {"type": "ScalingActive", "status": "True"}, (Status.UNKNOWN, Reason.EXTERNAL)),
        (
            BY_HPA,
            HPA,
            [],
            {"type": "ScalingActive", "status": "False", "message": "no metrics"},
            (Status.FALSE, Reason.SCALER_FAILS),
        ),
        (
            BY_HPA,
            HPA,
            [],
            {"type": "AbleToScale", "status": "False", "message": "cannot get what it scales"},
            (Status.FALSE, Reason.SCALER_FAILS),
        ),
        (BY_HPA, HPA, [Failure(HPA, 403, "no right")], {}, (Status.FALSE, Reason.SCALER_FAILS)),
        (
            BY_KEDA,
            SCALED_OBJECT,
            [],
            {"type": "Ready", "status": "False", "message": "no trigger"},
            (Status.FALSE, Reason.SCALER_FAILS),
        ),
        (
            BY_KEDA,
            SCALED_OBJECT,
            [Failure(SCALED_OBJECT, 404, "not found")],
            {},
            (Status.FALSE, Reason.SCALER_MISSING),
        ),
    ],
)
def test_the_autoscaler_that_was_written_says_how_it_fares_and_pods_serve_whatever_it_says(
    spec: Json, kind: Child, failures: list[Failure], status: Json, expected: Any
) -> None:
    seen = evidence(spec, pod(spec), deployment=healthy(), failures=tuple(failures))
    seen.observation.children[kind]["status"] = {"conditions": [status]}

    assert conditions(seen)[ConditionType.SCALING_ACTIVE] == expected
    assert conditions(seen)[ConditionType.READY][0] is Status.TRUE


def test_a_restarted_operator_keeps_what_was_said_of_scaling() -> None:
    spec = with_fields(MINIMAL, scaling={"maxReplicas": 4})
    before = make_status(
        evidence(spec, pod(spec), deployment=healthy(), scaling=ScalingReport(Reason.FOLLOWING_LOAD)), NOW
    )
    after = make_status(evidence(spec, pod(spec), deployment=healthy(), stored=before), "2026-02-02T00:00:00Z")

    assert after == before


def test_an_unchanged_world_makes_the_same_status_at_any_time() -> None:
    first = make_status(evidence(EVERYTHING, deployment=healthy(3)), NOW)
    second = make_status(evidence(EVERYTHING, deployment=healthy(3), stored=first), "2026-02-02T00:00:00Z")

    assert second == first
    assert first["observedGeneration"] == 1
    assert first["selector"] == "serving.shoal.dev/inferenceservice=cat"


def test_deployment_of_another_owner_does_not_affect_the_status() -> None:
    foreign = children(None, **healthy())
    foreign[DEPLOYMENT]["metadata"]["ownerReferences"] = []
    observation = Observation(service(), foreign, ())
    status = make_status(Evidence(observation=observation, target=target()), NOW)

    assert status["replicas"] == 0


def test_failures_and_changes_of_ready_are_announced_once() -> None:
    starting = {"replicas": 1, "updatedReplicas": 1}
    loading = make_status(evidence(None, pod(ready=False), deployment=starting), NOW)["conditions"]
    crashed = make_status(evidence(None, CRASHED, deployment=starting), NOW)["conditions"]
    fine = make_status(evidence(None, pod(), deployment=healthy()), NOW)["conditions"]

    assert [(news.warning, news.reason) for news in transitions([], loading)] == [(False, "PodsNotReady")]
    assert [(news.warning, news.reason) for news in transitions(loading, crashed)] == [(True, "RuntimeCrashed")]
    assert transitions(crashed, crashed) == []
    assert [(news.warning, news.reason) for news in transitions(crashed, fine)] == [(False, "Ready")]


@pytest.mark.parametrize(
    ("status", "replicas", "ready"), [({}, 0, 0), ({"replicas": 3, "readyReplicas": 2, "url": "http://cat"}, 3, 2)]
)
def test_where_objects_cannot_be_read_numbers_stay_and_no_more_is_claimed(
    status: Json, replicas: int, ready: int
) -> None:
    reported = unread_status(service(MINIMAL) | {"status": status}, ApiError(403, "pods is forbidden"), NOW)

    assert (reported["replicas"], reported["readyReplicas"]) == (replicas, ready)
    assert reported.get("url") == status.get("url")
    assert {each["type"]: each["status"] for each in reported["conditions"]}["Ready"] == "False"
    assert {each["status"] for each in reported["conditions"] if each["type"] != "Ready"} == {"Unknown"}
    assert all("pods is forbidden" in each["message"] for each in reported["conditions"])


def test_status_without_a_generation_counts_as_unobserved() -> None:
    resource = service(MINIMAL)
    resource["metadata"].pop("generation", None)

    assert unread_status(resource, ApiError(403, "no"), NOW)["observedGeneration"] == 0
    assert plain_status(resource, "no", NOW)["observedGeneration"] == 0


@pytest.mark.parametrize("scaling", [None, {"mode": "External", "maxReplicas": 4}])
def test_a_limit_of_the_spec_before_is_not_told_of_one_that_the_operator_does_not_scale(scaling: Json | None) -> None:
    limited = ScalingReport(Reason.FOLLOWING_LOAD, limit=ScalingLimit.MAXIMUM)
    seen = evidence(with_fields(MINIMAL, scaling=scaling), pod(), deployment=healthy(), scaling=limited)

    assert ConditionType.SCALING_LIMITED not in conditions(seen)


@pytest.mark.parametrize(("replicas", "words"), [(1, "a pod starts"), (3, "3 pods start")])
def test_waking_service_reports_the_pods_being_started(replicas: int, words: str) -> None:
    spec = with_fields(MINIMAL, replicas=replicas, scaling={"minReplicas": 0, "maxReplicas": 4})
    seen = evidence(spec, deployment={"replicas": replicas, "updatedReplicas": replicas})
    waking = Hosting(20000, (), open=True, waking=True)
    seen = dataclasses.replace(seen, target=dataclasses.replace(target(spec), hosting=waking))
    ready = next(item for item in evaluate_conditions(seen) if item.type is ConditionType.READY)

    assert (ready.status, ready.reason) == (Status.TRUE, Reason.WAKING)
    assert ready.message.startswith(words)
