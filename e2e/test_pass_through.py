"""What the spec hands to Kubernetes as it is: sidecars, init containers, volumes, the Service's type."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually
from shoal_local.installing import NAMESPACE

POLICY = "SHOAL_OPERATOR_POLICY"
KEEPS_RUNNING = ["python", "-c", "import signal; signal.pause()"]


def image_of(cluster: Cluster, container: str = "runtime") -> str:
    """Return the image that a container of a running service has: one that this node knows."""
    spec = cluster.get("deployment", "adder")["spec"]["template"]["spec"]
    return str(next(each["image"] for each in spec["containers"] if each["name"] == container))


@pytest.fixture
def any_service(cluster: Cluster) -> Iterator[None]:
    """Have the operator allow every type and annotation of Services, until the test ends."""
    system = cluster.within(NAMESPACE)
    (container,) = system.get("deployment", "shoal-operator")["spec"]["template"]["spec"]["containers"]
    before = next(each["value"] for each in container["env"] if each["name"] == POLICY)
    try:
        set_policy(system, json.dumps({**json.loads(before), "services": ["*"], "annotations": ["*"]}))
        yield
    finally:
        set_policy(system, before)


def set_policy(system: Cluster, text: str) -> None:
    system.kubectl("set", "env", "deployment/shoal-operator", f"{POLICY}={text}")
    system.kubectl("rollout", "status", "deployment/shoal-operator", "--timeout=120s")


@pytest.mark.usefixtures("any_service")
def test_a_service_with_everything_beside_it_serves_rolls_and_settles(namespace: Cluster) -> None:
    namespace.apply()
    eventually(lambda: namespace.get("deployment", "adder"))
    image = image_of(namespace)
    namespace.kubectl("create", "configmap", "words", "--from-literal=greeting=hello")
    says = "import pathlib; pathlib.Path('/shared/said').write_text(pathlib.Path('/words/greeting').read_text())"
    mounts = [{"name": "words", "mountPath": "/words"}, {"name": "shared", "mountPath": "/shared"}]
    namespace.apply(
        pod={
            "volumes": [{"name": "words", "configMap": {"name": "words"}}, {"name": "shared", "emptyDir": {}}],
            "initContainers": [
                {"name": "first", "image": image, "command": ["python", "-c", says], "volumeMounts": mounts}
            ],
            "containers": [
                {
                    "name": "beside",
                    "image": image,
                    "command": KEEPS_RUNNING,
                    "ports": [{"name": "http", "containerPort": 7070}],
                }
            ],
        },
        runtime={"volumeMounts": [{"name": "shared", "mountPath": "/shared"}], "sharedMemory": "64Mi"},
        rollout={"drainDelaySeconds": 0, "minReadySeconds": 1},
        service={"type": "NodePort", "annotations": {"example.com/team": "vision"}},
    )
    namespace.until_ready()

    assert predict(namespace) == EXPECTED
    (pod,) = [each for each in namespace.get("pods") if "deletionTimestamp" not in each["metadata"]]
    assert [each["name"] for each in pod["spec"]["containers"]] == ["runtime", "proxy", "beside"]
    service = namespace.get("service", "adder")
    assert (service["spec"]["type"], service["metadata"]["annotations"]["example.com/team"]) == ("NodePort", "vision")
    assert_settled(namespace)

    namespace.apply()
    namespace.until_ready()
    assert namespace.get("service", "adder")["spec"]["type"] == "ClusterIP"
    assert predict(namespace) == EXPECTED
    assert_settled(namespace)


def assert_settled(cluster: Cluster) -> None:
    """Look after look leaves every object as it is: the operator finds what it wrote as it wrote it."""

    def versions() -> list[str]:
        deployment, service = cluster.get("deployment", "adder"), cluster.get("service", "adder")
        return [deployment["metadata"]["generation"], service["metadata"]["resourceVersion"]]

    before = versions()
    for _ in range(2):
        cluster.kubectl("delete", "poddisruptionbudget", "adder")
        eventually(lambda: cluster.get("poddisruptionbudget", "adder"))  # so a look has been
    assert versions() == before
    assert cluster.condition("adder")["reason"] == "Ready"


def test_a_sidecar_that_ends_is_named_with_its_last_word(namespace: Cluster) -> None:
    namespace.apply()
    eventually(lambda: namespace.get("deployment", "adder"))
    ends = ["python", "-c", "raise SystemExit('no lease on the licence')"]
    namespace.apply(pod={"containers": [{"name": "beside", "image": image_of(namespace), "command": ends}]})

    eventually(lambda: namespace.condition("adder").get("reason") == "ContainerCrashed")
    assert "no lease on the licence" in namespace.condition("adder")["message"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"pod": {"containers": [{"name": "proxy", "image": "x"}]}}, "containers must not be named"),
        (
            {"pod": {"initContainers": [{"name": "model", "image": "x"}]}},
            "containers must not be named",
        ),
        ({"pod": {"volumes": [{"name": "run"}]}}, "volumes must not be named"),
        (
            {"pod": {"containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 8080}]}]}},
            "ports 8080 and 9090",
        ),
        (
            {
                "pod": {"containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 8001}]}]},
                "proxy": {"grpcPort": 8001},
            },
            "must not have the port of proxy.grpcPort",
        ),
        ({"runtime": {"volumeMounts": [{"name": "a", "mountPath": "/run/shoal"}]}}, "mountPath must not be"),
        ({"pod": {"containers": [{"image": "x"}]}}, "spec.pod.containers[0].name"),
        ({"rollout": {"minReadySeconds": 600}}, "minReadySeconds must be less"),
        ({"service": {"annotations": {"serving.shoal.dev/claimed-by": "me"}}}, "annotations must not begin with"),
    ],
)
def test_what_would_break_the_pod_is_refused_at_once(namespace: Cluster, spec: dict[str, Any], said: str) -> None:
    done = namespace.apply(check=False, **spec)

    assert done.returncode == 1
    assert said in done.stderr
