"""Reconciliation of one service: idempotent, level-triggered, and it reports what it could not do."""

import asyncio
import copy
import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from shoal_operator.children.observation import Key, Observation, dig
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.loop.workqueue import Outcome
from shoal_operator.manifests.desired import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INGRESS,
    NETWORK_POLICY,
    PEERS,
    SERVICE,
    Child,
)
from shoal_operator.reconciliation.reporting import ReportedStatus
from shoal_operator.scaling.load_state import LoadState
from shoal_operator.scaling.service_cache import CachedService, Replica
from shoal_schema.fields.declaring import Json
from tests.operator.fakes import FakeCluster, reconciler_of
from tests.operator.samples import EVERYTHING, MINIMAL, OPEN, SECURE, service, with_fields
from tests.operator.worlds import POD_UID, healthy, pod

CAT = Key("default", "cat")
OBJECTIVE = with_fields(MINIMAL, batching__latencyObjectiveMilliseconds=50)
ROUTED = with_fields(MINIMAL, route={"ingress": {"host": "cat.example.com"}})


def reconcile(
    cluster: FakeCluster, attainable: Mapping[str, bool] | None = None, *, records: Records | None = None
) -> Outcome:
    records = records or Records()
    if CAT in cluster.services:
        records.put(CAT, LoadState(attainable=attainable))
    return asyncio.run(reconciler_of(cluster, records=records).reconcile(CAT))


def cluster_with(spec: Json, **kwargs: Any) -> FakeCluster:
    cluster = FakeCluster(**kwargs)
    cluster.services[CAT] = service(spec)
    return cluster


def test_what_a_status_says_is_known_until_its_service_has_gone() -> None:
    async def main() -> None:
        cluster = cluster_with(MINIMAL)
        records = Records()
        reconciler = reconciler_of(cluster, records=records)
        await reconciler.reconcile(CAT)
        assert records.get(CAT, ReportedStatus).status == cluster.services[CAT]["status"]
        del cluster.services[CAT]
        await reconciler.reconcile(CAT)
        assert records.find(CAT, ReportedStatus) is None

    asyncio.run(main())


def ready(cluster: FakeCluster) -> Json:
    conditions = cluster.services[CAT]["status"]["conditions"]
    return next(item for item in conditions if item["type"] == "Ready")


@pytest.mark.parametrize(
    "spec",
    [MINIMAL, EVERYTHING, ROUTED, OBJECTIVE, SECURE],
    ids=["minimal", "everything", "routed", "objective", "secure"],
)
def test_second_reconciliation_of_an_unchanged_cluster_writes_nothing(spec: Json) -> None:
    cluster = cluster_with(spec)
    assert reconcile(cluster) is Outcome.DONE
    cluster.writes.clear()

    assert reconcile(cluster) is Outcome.DONE
    assert cluster.writes == []


def test_an_objective_that_cannot_be_met_is_written_and_warned_of_once() -> None:
    cluster = cluster_with(OBJECTIVE)
    reconcile(cluster)
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, **healthy()}
    cluster.pods[CAT] = [pod(OBJECTIVE)]
    reconcile(cluster)
    cluster.writes.clear()
    reconcile(cluster, {POD_UID: False})
    reconcile(cluster, {POD_UID: False, "another": True})
    reconcile(cluster)  # as after a restart of the operator

    assert cluster.writes == [("status", "cat"), ("event", "ObjectiveUnattainable")]
    assert [event["reason"] for event in cluster.events] == ["RollingOut", "Ready", "ObjectiveUnattainable"]
    assert cluster.events[-1]["type"] == "Warning"


def test_a_service_that_is_gone_or_leaving_is_left_to_the_cluster() -> None:
    cluster = FakeCluster()
    assert reconcile(cluster) is Outcome.GONE
    cluster.services[CAT] = service(deletionTimestamp="2026-01-01T00:00:00Z")

    assert reconcile(cluster) is Outcome.GONE
    assert cluster.writes == []


def test_deleted_child_is_recreated_and_foreign_change_corrected() -> None:
    cluster = cluster_with(MINIMAL)
    reconcile(cluster)
    wanted = copy.deepcopy(cluster.children)
    cluster.writes.clear()
    del cluster.children[CAT, SERVICE]
    cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] = 7

    reconcile(cluster)

    assert sorted(cluster.writes) == [("apply", "Deployment"), ("apply", "Service")]
    assert cluster.children[CAT, DEPLOYMENT]["spec"] == wanted[CAT, DEPLOYMENT]["spec"]
    assert cluster.children[CAT, SERVICE]["spec"] == wanted[CAT, SERVICE]["spec"]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (SERVICE, ("spec", "selector")),
        (DISRUPTION_BUDGET, ("spec", "selector", "matchLabels")),
        (NETWORK_POLICY, ("spec", "podSelector", "matchLabels")),
    ],
)
def test_a_foreign_key_in_a_selector_that_an_apply_would_leave_is_taken_out(kind: Child, path: tuple[str, ...]) -> None:
    cluster = cluster_with(MINIMAL)
    reconcile(cluster)
    wanted = copy.deepcopy(cluster.children[CAT, kind]["spec"])
    cluster.writes.clear()
    dig(cluster.children[CAT, kind], *path)["tier"] = "gold"

    assert reconcile(cluster) is Outcome.DONE
    assert cluster.writes == [("apply", kind.kind), ("merge", kind.kind)]
    assert cluster.children[CAT, kind]["spec"] == wanted
    cluster.writes.clear()
    reconcile(cluster)
    assert cluster.writes == []


def refusing(kind: Child, clash: tuple[str, ...]) -> FakeCluster:
    """Return a cluster that refuses an apply, as long as others have put something there that excludes ours."""

    def refuse(verb: str, what: str) -> Exception | None:
        clashes = dig(cluster.children.get((CAT, kind)), *clash) is not None
        return ApiError(422, "both are set") if verb == "apply" and what == kind.kind and clashes else None

    cluster = cluster_with(MINIMAL, refuse=refuse)
    reconcile(cluster)
    return cluster


@pytest.mark.parametrize(
    ("kind", "ours", "theirs"),
    [(DISRUPTION_BUDGET, "maxUnavailable", "minAvailable"), (DEPLOYMENT, "replicas", "theirs")],
)
def test_what_others_set_in_the_place_of_ours_is_put_right_though_an_apply_beside_it_is_refused(
    kind: Child, ours: str, theirs: str
) -> None:
    cluster = refusing(kind, ("spec", theirs))
    wanted = copy.deepcopy(cluster.children[CAT, kind]["spec"])
    del cluster.children[CAT, kind]["spec"][ours]
    cluster.children[CAT, kind]["spec"][theirs] = 1
    cluster.writes.clear()

    assert reconcile(cluster) is Outcome.DONE
    assert cluster.children[CAT, kind]["spec"] == wanted
    cluster.writes.clear()
    reconcile(cluster)
    assert cluster.writes == []


def test_what_is_refused_without_what_others_added_is_reported_in_the_words_of_the_first_refusal() -> None:
    def refuse(verb: str, what: str) -> Exception | None:
        return ApiError(422, f"{verb} is refused") if what == "Deployment" and broken else None

    broken = False
    cluster = cluster_with(MINIMAL, refuse=refuse)
    reconcile(cluster)
    cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] = 7
    broken = True

    assert reconcile(cluster) is Outcome.FAILED
    assert (ready(cluster)["reason"], ready(cluster)["message"]) == ("InvalidSpec", "Deployment: apply is refused")


def test_an_object_that_is_not_ours_is_never_touched() -> None:
    cluster = cluster_with(MINIMAL)
    foreign = {"metadata": {"name": "cat", "namespace": "default", "uid": "theirs"}, "spec": {"a": 1}}
    cluster.children[CAT, SERVICE] = copy.deepcopy(foreign)

    assert reconcile(cluster) is Outcome.FAILED
    assert cluster.children[CAT, SERVICE] == foreign
    assert ready(cluster)["reason"] == "NameTaken"
    assert ("apply", "Deployment") in cluster.writes


def test_service_without_its_owner_reference_is_adopted() -> None:
    cluster = cluster_with(MINIMAL)
    reconcile(cluster)
    del cluster.children[CAT, SERVICE]["metadata"]["ownerReferences"]
    cluster.writes.clear()

    assert reconcile(cluster) is Outcome.DONE
    assert ("apply", "Service") in cluster.writes
    (owner,) = cluster.children[CAT, SERVICE]["metadata"]["ownerReferences"]
    assert owner["controller"]
    assert ready(cluster)["reason"] != "NameTaken"
    assert cluster.services[CAT]["status"]["url"]


def serving(cluster: FakeCluster) -> None:
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, **healthy()}
    cluster.pods[CAT] = [pod()]


def peers_found(cluster: FakeCluster) -> Json:
    conditions = cluster.services[CAT]["status"]["conditions"]
    return next((item for item in conditions if item["type"] == "PeersFound"), {})


def test_a_strangers_service_of_the_peers_name_is_reported_and_decides_nothing() -> None:
    cluster = cluster_with(MINIMAL)
    foreign = {"metadata": {"name": "cat-peers", "namespace": "default", "uid": "theirs"}, "spec": {"a": 1}}
    cluster.children[CAT, PEERS] = copy.deepcopy(foreign)
    reconcile(cluster)
    serving(cluster)

    assert reconcile(cluster) is Outcome.FAILED  # retried soon: another owner's Service is not watched
    assert cluster.children[CAT, PEERS] == foreign
    assert ready(cluster)["status"] == "True"
    assert (peers_found(cluster)["status"], peers_found(cluster)["reason"]) == ("False", "NameTaken")
    assert [event["reason"] for event in cluster.events] == ["RollingOut", "NameTaken", "Ready"]
    cluster.writes.clear()
    reconcile(cluster)
    assert cluster.writes == []
    del cluster.children[CAT, PEERS]
    assert reconcile(cluster) is Outcome.DONE
    assert peers_found(cluster) == {}


@pytest.mark.parametrize("code", [403, 422])
def test_a_headless_service_that_is_refused_is_reported_and_decides_nothing(code: int) -> None:
    def refuse(verb: str, what: str) -> Exception | None:
        made = any(kind == SERVICE for _, kind in cluster.children)
        return ApiError(code, "no") if (verb, what) == ("apply", "Service") and made else None

    cluster = cluster_with(MINIMAL, refuse=refuse)
    reconcile(cluster)
    serving(cluster)

    assert reconcile(cluster) is Outcome.FAILED
    assert ready(cluster)["status"] == "True"
    assert peers_found(cluster)["message"].startswith("Service: no")


def test_a_service_becomes_ready_with_its_pods_and_says_so_once() -> None:
    cluster = cluster_with(MINIMAL)
    reconcile(cluster)
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, **healthy()}
    cluster.pods[CAT] = [pod()]
    reconcile(cluster)
    reconcile(cluster)

    assert ready(cluster)["status"] == "True"
    assert [event["reason"] for event in cluster.events] == ["RollingOut", "Ready"]
    assert cluster.events[1]["involvedObject"]["uid"] == service()["metadata"]["uid"]


def test_a_spec_that_cannot_be_read_changes_nothing_and_is_not_tried_again() -> None:
    cluster = cluster_with(MINIMAL)
    reconcile(cluster)
    before = copy.deepcopy(cluster.children)
    cluster.services[CAT]["spec"] = {"model": {"uri": "ftp://cat"}}

    assert reconcile(cluster) is Outcome.DONE
    assert cluster.children == before
    assert ready(cluster)["reason"] == "InvalidSpec"
    assert cluster.events[-1]["type"] == "Warning"


@pytest.mark.parametrize("characters", [131_072, 900_000])
def test_parameters_that_no_process_can_be_started_with_are_refused_by_field(characters: int) -> None:
    spec = with_fields(MINIMAL, model__parameters={"a": "x" * (characters - len('SHOAL_MODEL_PARAMETERS={"a":""}'))})
    cluster = cluster_with(spec)

    assert reconcile(cluster) is Outcome.DONE
    assert cluster.children == {}
    assert ready(cluster)["reason"] == "InvalidSpec"
    assert f"spec.model.parameters takes {characters} bytes" in ready(cluster)["message"]


def test_rejected_write_does_not_stop_the_others_and_is_retried() -> None:
    def refuse(verb: str, what: str) -> Exception | None:
        return ApiError(403, "no quota") if (verb, what) == ("apply", "Service") else None

    cluster = cluster_with(MINIMAL, refuse=refuse)

    assert reconcile(cluster) is Outcome.FAILED
    assert (CAT, DEPLOYMENT) in cluster.children
    assert (ready(cluster)["reason"], ready(cluster)["message"]) == ("ApplyFailed", "Service: no quota")


FORBIDDEN = 'pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "default"'


class Unreadable(FakeCluster):
    """A cluster whose services can be read, and none of their objects."""

    error: ApiError | None = None

    async def observe(self, key: Key, resource: Json) -> Observation:
        if self.error:
            raise self.error
        return await super().observe(key, resource)


def unreadable(status: int, message: str) -> Unreadable:
    cluster = Unreadable()
    cluster.services[CAT] = service(MINIMAL)
    cluster.error = ApiError(status, message)
    return cluster


def test_a_forbidden_read_is_reported_at_once_with_the_servers_words_and_what_to_do() -> None:
    cluster = unreadable(403, FORBIDDEN)

    assert reconcile(cluster) is Outcome.FAILED
    assert (ready(cluster)["status"], ready(cluster)["reason"]) == ("False", "ApplyFailed")
    assert FORBIDDEN in ready(cluster)["message"]
    assert "helm upgrade" in ready(cluster)["message"]
    assert [(event["type"], event["reason"]) for event in cluster.events] == [("Warning", "ApplyFailed")]
    cluster.writes.clear()
    reconcile(cluster)
    assert cluster.writes == []


def test_a_forbidden_read_lets_no_old_condition_stand_and_a_readable_cluster_puts_all_right() -> None:
    cluster = unreadable(403, FORBIDDEN)
    error, cluster.error = cluster.error, None
    reconcile(cluster)
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, **healthy()}
    cluster.pods[CAT] = [pod()]
    reconcile(cluster)
    before = copy.deepcopy(cluster.services[CAT]["status"])
    cluster.error = error
    reconcile(cluster)
    status = cluster.services[CAT]["status"]

    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "Ready": "False",
        **dict.fromkeys(("Available", "Progressing", "ModelLoaded", "RouteReady"), "Unknown"),
    }
    assert (status["replicas"], status["url"]) == (before["replicas"], before["url"])
    cluster.error = None
    assert reconcile(cluster) is Outcome.DONE
    assert ready(cluster)["status"] == "True"


@pytest.mark.parametrize("code", [0, 500, 503])
def test_an_outage_of_reads_is_reported_after_three_reconciliations(code: int) -> None:
    cluster = unreadable(code, "later")
    reconciler = reconciler_of(cluster)
    for _ in range(2):
        with pytest.raises(ApiError, match="later"):
            asyncio.run(reconciler.reconcile(CAT))
        assert "status" not in cluster.services[CAT]

    assert asyncio.run(reconciler.reconcile(CAT)) is Outcome.FAILED
    assert ready(cluster)["reason"] == "ApplyFailed"


@pytest.mark.parametrize("status", [0, 409, 429, 500, 503])
def test_outage_or_race_is_retried_without_a_condition(status: int) -> None:
    cluster = cluster_with(MINIMAL, refuse=lambda verb, what: ApiError(status, "later") if what == "Service" else None)

    with pytest.raises(ApiError, match="later"):
        reconcile(cluster)
    assert "status" not in cluster.services[CAT]


def test_an_event_that_cannot_be_posted_is_no_failure() -> None:
    cluster = cluster_with(
        MINIMAL, refuse=lambda verb, _: ApiError(403, "events are forbidden") if verb == "event" else None
    )

    assert reconcile(cluster) is Outcome.DONE


def test_a_fraction_that_the_api_server_refuses_is_named_by_field() -> None:
    weighted = [{"weight": 1.0}, {"weight": 1.5}]
    affinity = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}
    spec = with_fields(MINIMAL, pod={"affinity": affinity}, model__parameters={"top": 0.5})
    refusal = ApiError(500, "unable to convert unstructured object to apps/v1: cannot convert float64 to int32")
    cluster = cluster_with(spec, refuse=lambda verb, what: refusal if what == "Deployment" else None)
    reconcile(cluster)

    assert ready(cluster)["reason"] == "InvalidSpec"
    assert ready(cluster)["message"].endswith(
        "cannot convert float64 to int32. Kubernetes accepts whole numbers only:"
        " spec.pod.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[1].weight is 1.5"
    )


def test_setting_added_by_another_writer_is_removed_and_reported_once() -> None:
    cluster = cluster_with(MINIMAL)
    reconcile(cluster)
    wanted = copy.deepcopy(cluster.children[CAT, DEPLOYMENT]["spec"])
    proxy = cluster.children[CAT, DEPLOYMENT]["spec"]["template"]["spec"]["containers"][1]
    proxy["env"].append({"name": "SHOAL_QUEUE_MAX_ROWS", "value": "1"})
    cluster.events.clear()

    assert [reconcile(cluster), reconcile(cluster)] == [Outcome.DONE, Outcome.DONE]
    assert cluster.children[CAT, DEPLOYMENT]["spec"] == wanted
    (event,) = cluster.events
    assert (event["type"], event["reason"]) == ("Warning", "SettingRemoved")
    assert "SHOAL_QUEUE_MAX_ROWS of container proxy" in event["message"]
    assert "proxy.env" in event["message"]


def adding_a_setting(kind: Child, child: Json) -> None:
    if kind == DEPLOYMENT:
        env = child["spec"]["template"]["spec"]["containers"][1]["env"]
        if all(variable["name"] != "SHOAL_QUEUE_MAX_ROWS" for variable in env):
            env.append({"name": "SHOAL_QUEUE_MAX_ROWS", "value": "1"})


def adding_a_selector(kind: Child, child: Json) -> None:
    if kind == SERVICE:
        child["spec"]["selector"]["tier"] = "gold"


def taking_a_replica_more(kind: Child, child: Json) -> None:
    if kind == DEPLOYMENT:
        child["spec"]["replicas"] = 3


@pytest.mark.parametrize(
    ("mutate", "kind", "words"),
    [
        (adding_a_setting, DEPLOYMENT, "adds SHOAL_QUEUE_MAX_ROWS of container proxy"),
        (adding_a_selector, SERVICE, "changes this object at each write"),
        (taking_a_replica_more, DEPLOYMENT, "changes this object at each write"),
    ],
)
def test_what_a_policy_of_the_cluster_puts_into_each_write_is_reported_once_and_not_written_against(
    mutate: Any, kind: Child, words: str
) -> None:
    cluster = cluster_with(MINIMAL, mutate=mutate)
    clock = itertools.count(0.0, 0.1)
    reconciler = reconciler_of(cluster, clock=lambda: next(clock))
    asyncio.run(reconciler.reconcile(CAT))
    (event,) = cluster.events
    cluster.writes.clear()
    # What kubectl annotate writes passes the same policy, and its name stands in managedFields.
    cluster.children[CAT, kind]["metadata"]["managedFields"] = [{"manager": "kubectl-annotate", "time": "2026"}]

    assert {asyncio.run(reconciler.reconcile(CAT)) for _ in range(20)} == {Outcome.FAILED}
    assert (cluster.writes, len(cluster.events)) == ([], 1)
    assert (event["type"], event["reason"]) == ("Warning", "ChangedAtAdmission")
    assert (ready(cluster)["status"], ready(cluster)["reason"]) == ("False", "ChangedAtAdmission")
    assert words in ready(cluster)["message"]
    assert "policy" in event["message"]


def test_what_a_policy_put_into_a_write_is_taken_out_soon_after_the_policy_is_gone() -> None:
    policies = [adding_a_setting]
    cluster = cluster_with(MINIMAL, mutate=lambda kind, child: [policy(kind, child) for policy in policies] and None)
    clock = itertools.count(0.0)
    reconciler = reconciler_of(cluster, clock=lambda: next(clock))
    asyncio.run(reconciler.reconcile(CAT))
    policies.clear()
    asyncio.run(reconciler.reconcile(CAT))
    assert ready(cluster)["reason"] == "ChangedAtAdmission"

    clock = itertools.count(400.0)
    assert asyncio.run(reconciler.reconcile(CAT)) is Outcome.DONE
    assert ready(cluster)["reason"] != "ChangedAtAdmission"
    assert "SettingRemoved" in [event["reason"] for event in cluster.events]


def test_a_route_that_a_policy_changes_is_there_and_not_refused() -> None:
    def mutate(kind: Child, child: Json) -> None:
        if kind == INGRESS:
            child["spec"]["tls"] = [{"hosts": ["cat.example.com"]}]

    cluster = cluster_with(ROUTED, mutate=mutate)
    reconcile(cluster)

    conditions = {item["type"]: item["reason"] for item in cluster.services[CAT]["status"]["conditions"]}
    assert (conditions["RouteReady"], conditions["Ready"]) == ("RoutePending", "ChangedAtAdmission")


def test_foreign_change_beside_a_policy_is_corrected_at_once() -> None:
    cluster = cluster_with(MINIMAL, mutate=adding_a_setting)
    clock = itertools.count(0.0, 0.1)
    reconciler = reconciler_of(cluster, clock=lambda: next(clock))
    asyncio.run(reconciler.reconcile(CAT))
    cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] = 7

    asyncio.run(reconciler.reconcile(CAT))
    assert cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] == 1
    assert "SettingRemoved" not in [event["reason"] for event in cluster.events]


NO_STATUS = ApiError(
    403,
    'inferenceservices.serving.shoal.dev "cat" is forbidden: User "shoal" cannot patch resource'
    ' "inferenceservices/status" in API group "serving.shoal.dev"',
)


VAP = (
    "deployments.apps \"cat\" is forbidden: ValidatingAdmissionPolicy 'teams' with binding 'teams-all' denied request:"
    " every Deployment needs the label team"
)
WEBHOOK = 'admission webhook "validate.kyverno.svc-fail" denied the request: every Deployment needs the label team'


@pytest.mark.parametrize("status", [400, 403, 409, 422])
@pytest.mark.parametrize("message", [VAP, WEBHOOK])
def test_what_a_policy_denies_is_reported_alike_whatever_status_the_policy_chose(status: int, message: str) -> None:
    strict = False
    denial = ApiError(status, message)
    cluster = cluster_with(MINIMAL, refuse=lambda _, what: denial if what == "Deployment" and strict else None)
    reconcile(cluster)
    cluster.writes.clear()
    cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] = 7
    strict = True

    assert reconcile(cluster) is Outcome.FAILED
    assert ready(cluster)["reason"] == "ApplyFailed"
    assert message in ready(cluster)["message"]
    assert "policy or webhook" in ready(cluster)["message"]
    assert cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] == 7


class OlderDefinition(FakeCluster):
    """A cluster whose definition knows nothing of upgrades, and takes no field that it does not know."""

    async def apply_status(self, resource: Json, status: Json) -> Json:
        for name in ("images", "upgrade"):
            if name in status:
                raise ApiError(
                    500, f"failed to create typed patch object: .status.{name}: field not declared in schema"
                )
        return await super().apply_status(resource, status)


def test_beside_the_definition_of_an_older_release_all_is_reported_that_it_has_a_field_for() -> None:
    older = OlderDefinition()
    older.services[CAT] = service(MINIMAL)
    newer = cluster_with(MINIMAL)

    assert reconcile(newer) is Outcome.DONE
    assert reconcile(older) is Outcome.FAILED  # looked at again: some day the definition is renewed
    reported = newer.services[CAT]["status"]
    assert older.services[CAT]["status"] == {
        name: reported[name] for name in reported if name not in ("images", "upgrade")
    }


def test_a_status_that_a_policy_denies_is_reported_as_one_that_may_not_be_written() -> None:
    cluster = cluster_with(MINIMAL, refuse=lambda verb, _: ApiError(422, VAP) if verb == "status" else None)

    assert reconcile(cluster) is Outcome.FAILED
    (event,) = cluster.events
    assert "the status cannot be written" in event["message"]
    assert "denies the object" in event["message"]


def test_a_status_that_may_not_be_written_is_reported_once_and_tried_until_it_may(caplog: Any) -> None:
    may_write = False
    cluster = cluster_with(MINIMAL, refuse=lambda verb, _: NO_STATUS if verb == "status" and not may_write else None)
    clock = itertools.count(0.0, 2.0)
    reconciler = reconciler_of(cluster, clock=lambda: next(clock))

    assert {asyncio.run(reconciler.reconcile(CAT)) for _ in range(12)} == {Outcome.FAILED}
    (event,) = cluster.events
    assert (event["type"], event["reason"]) == ("Warning", "ApplyFailed")
    assert "the status cannot be written" in event["message"]
    assert "Install the chart's role again" in event["message"]
    assert caplog.text.count("event=status_forbidden") == 1

    may_write = True
    clock = itertools.count(1000.0)
    assert asyncio.run(reconciler.reconcile(CAT)) is Outcome.DONE
    assert ready(cluster)["observedGeneration"] == 1


NAMESPACE_ENDS = ApiError(
    403,
    'services "cat" is forbidden: unable to create new content in namespace default because it is being terminated',
    causes=["NamespaceTerminating"],
)


@pytest.mark.parametrize("verb", ["apply", "status"])
def test_namespace_in_deletion_ends_the_reconciliation_without_a_report(verb: str, caplog: Any) -> None:
    cluster = cluster_with(MINIMAL, refuse=lambda did, _: NAMESPACE_ENDS if did == verb else None)

    with pytest.raises(ApiError) as caught:
        reconcile(cluster)
    assert caught.value.is_deletion
    assert "status" not in cluster.services[CAT]
    assert {each.levelname for each in caplog.records} <= {"INFO", "DEBUG"}


def test_a_route_that_is_taken_out_of_the_spec_is_deleted() -> None:
    cluster = cluster_with(ROUTED)
    reconcile(cluster)
    assert (CAT, INGRESS) in cluster.children
    cluster.services[CAT]["spec"] = copy.deepcopy(MINIMAL)

    reconcile(cluster)

    assert (CAT, INGRESS) not in cluster.children


def test_a_policy_is_taken_away_with_its_mode_and_comes_back_with_it() -> None:
    cluster = cluster_with(MINIMAL)
    reconcile(cluster)
    cluster.services[CAT]["spec"] = OPEN
    reconcile(cluster)
    assert (CAT, NETWORK_POLICY) not in cluster.children
    cluster.writes.clear()
    reconcile(cluster)
    assert cluster.writes == []
    cluster.services[CAT]["spec"] = MINIMAL
    reconcile(cluster)
    assert (CAT, NETWORK_POLICY) in cluster.children


@pytest.mark.parametrize("spec", [MINIMAL, OPEN])
def test_a_policy_of_the_services_name_that_is_not_ours_is_left_alone(spec: Json) -> None:
    cluster = cluster_with(spec)
    foreign = {"metadata": {"name": "cat", "namespace": "default", "uid": "theirs"}, "spec": {"podSelector": {}}}
    cluster.children[CAT, NETWORK_POLICY] = copy.deepcopy(foreign)
    reconcile(cluster)
    assert cluster.children[CAT, NETWORK_POLICY] == foreign
    reported = "NetworkPolicy" in ready(cluster)["message"]
    assert reported is (spec == MINIMAL)


def test_each_reconciliation_replaces_the_cached_pods() -> None:
    records, cluster = Records(), cluster_with(with_fields(MINIMAL, scaling={"maxReplicas": 3}))
    cluster.pods[CAT] = [pod(uid=f"uid-{number}", podIP=f"10.0.0.{number}") for number in (1, 2)]
    reconcile(cluster, records=records)
    assert len(records.get(CAT, CachedService).replicas) == 2

    del cluster.pods[CAT][0]  # without an event
    reconcile(cluster, records=records)
    assert records.get(CAT, CachedService).replicas == (Replica("uid-2", "10.0.0.2", "cat-1"),)

    del cluster.services[CAT]
    assert reconcile(cluster, records=records) is Outcome.GONE
    assert records.find(CAT, CachedService) is None


class Killed(BaseException):
    """The process dies."""


def test_killed_at_any_write_the_next_operator_reaches_the_same_world() -> None:
    whole = cluster_with(ROUTED)
    reconcile(whole)
    assert len(whole.writes) >= 7

    for step in range(len(whole.writes)):
        left = [step]

        def kill(verb: str, what: str, left: list[int] = left) -> Exception | None:
            left[0] -= 1
            if left[0] == -1:
                raise Killed
            return None

        cluster = cluster_with(ROUTED, refuse=kill)
        with pytest.raises(Killed):
            reconcile(cluster)
        reconcile(cluster)
        assert worlds(cluster) == worlds(whole)


def worlds(cluster: FakeCluster) -> Any:
    """Return everything that is stored, without the numbers that a server deals out."""
    children = {
        str(kind): {**body, "metadata": {k: v for k, v in body["metadata"].items() if k != "uid"}}
        for (_, kind), body in cluster.children.items()
    }
    return children, cluster.services
