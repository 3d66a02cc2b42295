"""A spec that the policy does not allow: no objects are created, existing ones stay, one Event is posted."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from shoal_operator.children.observation import Key
from shoal_operator.loop.workqueue import Outcome
from shoal_operator.manifests.desired import DEPLOYMENT, INGRESS, SERVICE, SERVICE_ACCOUNT
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.policy import Policy
from tests.operator.fakes import FakeCluster, reconciler_of
from tests.operator.samples import DEFAULTS, MINIMAL, service, with_fields
from tests.operator.worlds import healthy

CAT = Key("default", "cat")
BY_ANOTHER_ACCOUNT = with_fields(MINIMAL, pod={"serviceAccountName": "admin"})


def reconcile(cluster: FakeCluster, **policy: Any) -> Outcome:
    defaults = structs.replace(DEFAULTS, policy=Policy(**policy))
    reconciler = reconciler_of(cluster, defaults=defaults)
    return asyncio.run(reconciler.reconcile(CAT))


def cluster_with(spec: Json) -> FakeCluster:
    cluster = FakeCluster()
    cluster.services[CAT] = service(spec)
    return cluster


def condition(cluster: FakeCluster, kind: str = "Ready") -> tuple[str, str]:
    conditions = cluster.services[CAT]["status"]["conditions"]
    found = next(item for item in conditions if item["type"] == kind)
    return found["status"], found["reason"]


def test_nothing_is_made_of_a_service_that_asks_for_too_much_and_it_is_reported_once() -> None:
    cluster = cluster_with(BY_ANOTHER_ACCOUNT)

    assert reconcile(cluster) is Outcome.DONE
    assert cluster.children == {}
    assert condition(cluster) == ("False", "NotAllowed")
    for kind in ("Available", "Progressing", "ModelLoaded"):
        assert condition(cluster, kind) == ("False", "NotAllowed")
    assert condition(cluster, "RouteReady")[1] == "NotAllowed"
    assert [(event["type"], event["reason"]) for event in cluster.events] == [("Warning", "NotAllowed")]
    assert "spec.pod.serviceAccountName 'admin' (policy.serviceAccounts: none)" in cluster.events[0]["message"]
    cluster.writes.clear()
    assert reconcile(cluster) is Outcome.DONE
    assert cluster.writes == []


def test_what_runs_stays_as_it_is_and_as_many_as_wanted() -> None:
    cluster = cluster_with(with_fields(MINIMAL, replicas=2))
    reconcile(cluster)
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, **healthy(2)}
    template = cluster.children[CAT, DEPLOYMENT]["spec"]["template"]
    route = {"ingress": {"host": "bank.example.com", "annotations": {"a/configuration-snippet": "x"}}}
    asked = with_fields(BY_ANOTHER_ACCOUNT, replicas=3, route=route, service={"type": "LoadBalancer"})
    cluster.services[CAT] = {**service(asked, generation=2), "status": cluster.services[CAT]["status"]}
    url = cluster.services[CAT]["status"]["url"]
    reconcile(cluster)

    assert condition(cluster) == ("False", "NotAllowed")
    assert condition(cluster, "Available") == ("True", "Available")
    deployment = cluster.children[CAT, DEPLOYMENT]["spec"]
    assert (deployment["template"], deployment["replicas"]) == (template, 3)
    assert (CAT, INGRESS) not in cluster.children
    assert cluster.children[CAT, SERVICE]["spec"]["type"] == "ClusterIP"
    assert cluster.services[CAT]["status"]["url"] == url


def test_what_the_install_allows_is_made() -> None:
    cluster = cluster_with(BY_ANOTHER_ACCOUNT)
    reconcile(cluster)
    reconcile(cluster, service_accounts=("admin",))

    assert condition(cluster) == ("False", "RollingOut")
    assert cluster.children[CAT, DEPLOYMENT]["spec"]["template"]["spec"]["serviceAccountName"] == "admin"


@pytest.mark.parametrize("there", [False, True])
def test_pods_never_run_as_an_account_of_the_services_name_that_is_somebody_elses(there: bool) -> None:
    cluster = cluster_with(MINIMAL)
    if there:
        reconcile(cluster)
        cluster.services[CAT]["spec"]["runtime"] = {"image": "newer:1"}
    cluster.children[CAT, SERVICE_ACCOUNT] = {"metadata": {"name": "cat", "namespace": "default", "uid": "theirs"}}
    before = cluster.children.get((CAT, DEPLOYMENT))

    assert reconcile(cluster) is Outcome.FAILED
    assert condition(cluster) == ("False", "NameTaken")
    assert cluster.children.get((CAT, DEPLOYMENT)) == before
