"""An operator with other images: services keep theirs, and then follow one after another."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually
from shoal_schema.fields.declaring import Json
from tests.upgrades.recorded import recorded

OPERATOR = "deployment/shoal-operator"
NEW = "shoal/runtime:another"
NAMES = ("first", "second")


@pytest.fixture
def system(cluster: Cluster) -> Iterator[Cluster]:
    """Give the namespace of the installed operator, whose settings are put back."""
    found = cluster.within("shoal-system")
    before = {each["name"]: each.get("value", "") for each in _variables(found)}
    yield found
    set_operator(found, **{name: before[name] for name in before if name.startswith("SHOAL_OPERATOR_UPGRADE_")},
                 SHOAL_OPERATOR_RUNTIME_IMAGE=before["SHOAL_OPERATOR_RUNTIME_IMAGE"])  # fmt: skip


def _variables(system: Cluster) -> list[dict[str, str]]:
    (container,) = system.get("deployment", "shoal-operator")["spec"]["template"]["spec"]["containers"]
    found: list[dict[str, str]] = container["env"]
    return found


def set_operator(system: Cluster, **variables: str) -> None:
    """Have the operator started anew with these settings."""
    system.kubectl("set", "env", OPERATOR, *(f"{name}={value}" for name, value in variables.items()))
    system.kubectl("rollout", "status", OPERATOR, "--timeout=60s")


def image(cluster: Cluster, name: str) -> str:
    containers = cluster.get("deployment", name)["spec"]["template"]["spec"]["containers"]
    return next(str(each["image"]) for each in containers if each["name"] == "runtime")


def test_services_keep_their_images_and_follow_one_after_another(system: Cluster, namespace: Cluster) -> None:
    for name in NAMES:
        namespace.apply(name)
        namespace.until_ready(name)
    before = image(namespace, "first")
    pods = {pod["metadata"]["uid"] for pod in namespace.get("pods")}
    set_operator(system, SHOAL_OPERATOR_RUNTIME_IMAGE=NEW, SHOAL_OPERATOR_UPGRADE_UNAVAILABLE_SERVICES="0")
    for name in NAMES:
        eventually(lambda: namespace.condition(name, "Upgraded").get("reason") == "UpgradePending")  # noqa: B023
    assert {pod["metadata"]["uid"] for pod in namespace.get("pods")} == pods
    assert namespace.get("infsvc", "first")["status"]["images"]["runtime"] == before
    table = namespace.kubectl("get", "infsvc", "--output", "wide").stdout
    assert table.count("UpgradePending") == len(NAMES)
    assert before in table

    namespace.kubectl("scale", "infsvc/second", "--replicas=2")
    eventually(lambda: namespace.get("deployment", "second")["status"].get("readyReplicas") == 2)
    assert image(namespace, "second") == before

    set_operator(system, SHOAL_OPERATOR_UPGRADE_UNAVAILABLE_SERVICES="1")
    eventually(lambda: image(namespace, "first") == NEW)
    assert image(namespace, "second") == before
    eventually(lambda: image(namespace, "second") == NEW)
    assert namespace.condition("first")["status"] == "True"
    for name in NAMES:
        namespace.until_ready(name)
        eventually(lambda: not namespace.condition(name, "Upgraded"))  # noqa: B023
        assert "upgrade" not in namespace.get("infsvc", name)["status"]


@contextmanager
def definition(cluster: Cluster, spec: Json) -> Iterator[None]:
    """Have InferenceServices defined otherwise, until the block ends."""
    name = "inferenceservices.serving.shoal.dev"
    installed = cluster.get("customresourcedefinition", name)
    del installed["metadata"]["resourceVersion"]
    try:
        cluster.kubectl("replace", "--filename", "-", text=json.dumps({**installed, "spec": spec}))
        yield
    finally:
        cluster.kubectl("replace", "--filename", "-", text=json.dumps(installed))


def test_fields_of_the_first_definition_are_named_once_it_is_replaced(namespace: Cluster) -> None:
    """Fields are dropped by the API server; tests/upgrades has every definition and more objects, in process."""
    with definition(namespace, recorded("inferenceservices")[0].spec):
        namespace.apply("old", queue={"maxItems": 4096}, runtime={"forwardHeaders": ["x-tenant"]})
        eventually(lambda: "spec.queue.maxRows" in namespace.condition("old").get("message", ""))
        assert namespace.condition("old")["reason"] == "InvalidSpec"
    # A definition that is replaced is no change of its objects: the operator would come to it by its resync.
    namespace.kubectl("annotate", "infsvc/old", "seen=no")

    eventually(lambda: namespace.condition("old", "SpecRead").get("reason") == "FieldRenamed")
    spec_read = namespace.condition("old", "SpecRead")["message"]
    assert "queue.maxRows" in spec_read
    assert "proxy.forwardHeaders" in spec_read
    namespace.until_ready("old")
    assert "maxItems" not in namespace.get("infsvc", "old")["spec"]["queue"]

    namespace.apply("old", queue={"maxRows": 4096}, proxy={"forwardHeaders": ["x-tenant"]})
    eventually(lambda: not namespace.condition("old", "SpecRead"))
