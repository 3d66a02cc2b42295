"""Who may only create InferenceServices reaches nothing through the operator that the install does not allow."""

from typing import Any

import pytest

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

SECRET = {"secretKeyRef": {"name": "database", "key": "password"}}
SNIPPET = "nginx.ingress.kubernetes.io/configuration-snippet"


def beside(**container: Any) -> dict[str, Any]:
    return {"pod": {"containers": [{"name": "a", "image": "a:1", **container}]}}


HOSTILE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "account": ({"pod": {"serviceAccountName": "default"}}, ["spec.pod.serviceAccountName", "policy.serviceAccounts"]),
    "secret": ({"runtime": {"env": [{"name": "A", "valueFrom": SECRET}]}}, ["spec.runtime.env[0]", "policy.secrets"]),
    "mounted-secret": (
        {"pod": {"volumes": [{"name": "a", "secret": {"secretName": "database"}}]}},
        ["spec.pod.volumes[0].secret.secretName 'database'", "policy.secrets: shoal-*"],
    ),
    "root": ({"pod": {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}}, ["runAsUser 0", "policy.root"]),
    "privileged": (beside(securityContext={"privileged": True}), ["spec.pod.containers[a].securityContext.privileged"]),
    "node-port": (beside(ports=[{"containerPort": 7000, "hostPort": 7000}]), ["ports.hostPort 7000", "policy.root"]),
    "nfs": (
        {"pod": {"volumes": [{"name": "a", "nfs": {"server": "10.0.0.1", "path": "/"}}]}},
        ["spec.pod.volumes[a] 'nfs'", "policy.volumes"],
    ),
    "snippet": (
        {"route": {"ingress": {"host": "a.example.com", "annotations": {SNIPPET: "return 200;"}}}},
        [f"spec.route.ingress.annotations '{SNIPPET}=return 200;'", "policy.annotations"],
    ),
    "balancer": ({"service": {"type": "LoadBalancer"}}, ["spec.service.type 'LoadBalancer'", "policy.services"]),
    "priority": ({"pod": {"priorityClassName": "system-node-critical"}}, ["policy.priorityClasses"]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_allowed_is_refused_with_field_and_value_and_nothing_is_made(namespace: Cluster, name: str) -> None:
    spec, said = HOSTILE[name]
    namespace.apply(**spec)

    eventually(lambda: namespace.condition("adder").get("reason") == "NotAllowed", within_s=10)
    message = namespace.condition("adder")["message"]
    assert [part for part in said if part not in message] == [], message
    eventually(lambda: "Warning  NotAllowed" in namespace.kubectl("describe", "infsvc", "adder").stdout)
    for kind in ("deployments", "services", "ingresses", "pods"):
        assert [each["metadata"]["name"] for each in namespace.get(kind)] == []


def test_what_runs_stays_and_scales_while_its_new_spec_is_not_allowed(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    pod = namespace.get("pods")[0]["metadata"]["uid"]
    namespace.apply(**HOSTILE["privileged"][0], replicas=2)
    eventually(lambda: namespace.condition("adder").get("reason") == "NotAllowed")

    eventually(lambda: namespace.get("deployment", "adder")["status"].get("availableReplicas") == 2)
    assert predict(namespace) == EXPECTED
    pods = namespace.get("pods")
    assert pod in [each["metadata"]["uid"] for each in pods]
    assert {len(each["spec"]["containers"]) for each in pods} == {2}
    assert namespace.condition("adder", "Available")["status"] == "True"

    namespace.apply(replicas=1)
    namespace.until_ready()


def test_pods_do_not_run_as_an_account_that_happens_to_have_the_services_name(namespace: Cluster) -> None:
    namespace.kubectl("create", "serviceaccount", "adder")
    namespace.apply()
    eventually(lambda: namespace.condition("adder").get("reason") == "NameTaken")

    assert namespace.condition("adder")["message"].startswith("ServiceAccount adder")
    assert namespace.get("deployments") == []
    namespace.kubectl("delete", "serviceaccount", "adder")
    namespace.until_ready()
    assert predict(namespace) == EXPECTED


def test_a_secret_that_is_named_for_services_needs_no_value_of_the_chart(namespace: Cluster) -> None:
    namespace.kubectl("create", "secret", "generic", "shoal-words", "--from-literal=greeting=hello")
    reference = {"secretKeyRef": {"name": "shoal-words", "key": "greeting"}}
    namespace.apply(runtime={"env": [{"name": "GREETING", "valueFrom": reference}]})
    namespace.until_ready()
