"""What the operator makes stays as the operator made it; what others made is theirs."""

import json
from functools import partial
from typing import Any

import pytest
import yaml

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually


def test_a_foreign_change_to_a_child_is_corrected(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    selector = namespace.get("service", "adder")["spec"]["selector"]
    image = runtime_image(namespace)

    namespace.kubectl(
        "patch", "service", "adder", "--patch", json.dumps({"spec": {"selector": dict.fromkeys(selector, "x")}})
    )
    namespace.kubectl("set", "image", "deployment/adder", "runtime=registry.example/other:1")

    eventually(lambda: namespace.get("service", "adder")["spec"]["selector"] == selector)
    eventually(lambda: runtime_image(namespace) == image)
    namespace.until_ready()
    assert predict(namespace) == EXPECTED


def test_foreign_selector_key_does_not_block_clients(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    kinds = ("service", "poddisruptionbudget", "networkpolicy")
    before = {kind: namespace.get(kind, "adder")["spec"] for kind in kinds}
    added = {"tier": "gold"}

    namespace.kubectl("label", "service", "adder", "serving.shoal.dev/inferenceservice=other", "--overwrite")
    changes = ({"selector": added}, {"selector": {"matchLabels": added}}, {"podSelector": {"matchLabels": added}})
    for kind, spec in zip(kinds, changes, strict=True):
        namespace.kubectl("patch", kind, "adder", "--type=merge", "--patch", json.dumps({"spec": spec}))

    for kind in kinds:
        eventually(partial(has_spec, namespace, kind, before[kind]))
    namespace.until_ready()
    assert predict(namespace) == EXPECTED


CLASHES = (
    ("poddisruptionbudget", {"maxUnavailable": None, "minAvailable": 1}),
    ("service", {"type": "ExternalName", "externalName": "example.com"}),
    ("service", {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}),
    ("service", {"sessionAffinity": "ClientIP", "internalTrafficPolicy": "Local"}),
    ("service", {"externalIPs": ["192.0.2.1"], "externalTrafficPolicy": "Local"}),
)


@pytest.mark.parametrize(("kind", "spec"), CLASHES, ids=[",".join(spec) for _, spec in CLASHES])
def test_foreign_replacement_of_a_field_is_corrected(namespace: Cluster, kind: str, spec: dict[str, Any]) -> None:
    namespace.apply()
    eventually(lambda: namespace.get(kind, "adder"))
    before = spec_of(namespace, kind)

    namespace.kubectl("patch", kind, "adder", "--type=merge", "--patch", json.dumps({"spec": spec}))

    eventually(lambda: spec_of(namespace, kind) == before)
    assert namespace.condition("adder").get("reason") != "InvalidSpec"


def test_a_variable_that_others_take_from_elsewhere_is_put_right(namespace: Cluster) -> None:
    if namespace.parts.embedded:
        pytest.skip("only on a real control plane: the embedded one takes a variable with a value and a source")
    namespace.apply()
    eventually(lambda: namespace.get("deployment", "adder"))
    containers = spec_of(namespace, "deployment")["template"]["spec"]["containers"]
    position = next(index for index, each in enumerate(containers[0]["env"]) if "value" in each)
    path = f"/spec/template/spec/containers/0/env/{position}"
    name = containers[0]["env"][position]["name"]
    theirs = {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    change = json.dumps([{"op": "replace", "path": path, "value": theirs}])

    namespace.kubectl("patch", "deployment", "adder", "--type=json", "--patch", change)

    eventually(lambda: spec_of(namespace, "deployment")["template"]["spec"]["containers"] == containers)


def spec_of(cluster: Cluster, kind: str) -> dict[str, Any]:
    """Return a spec without the addresses that the API server gives anew."""
    given = ("clusterIP", "clusterIPs")
    return {key: value for key, value in cluster.get(kind, "adder")["spec"].items() if key not in given}


def has_spec(cluster: Cluster, kind: str, spec: dict[str, Any]) -> bool:
    return bool(cluster.get(kind, "adder")["spec"] == spec)


def runtime_image(cluster: Cluster) -> str:
    containers = cluster.get("deployment", "adder")["spec"]["template"]["spec"]["containers"]
    return next(str(each["image"]) for each in containers if each["name"] == "runtime")


def is_another(cluster: Cluster, kind: str, uid: str) -> bool:
    """Return whether there is a new object of the name."""
    found = cluster.get(kind, "adder")
    return bool(found) and found["metadata"]["uid"] != uid


def test_a_deleted_child_comes_back(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    children = ("deployment", "service")
    before = {kind: namespace.get(kind, "adder")["metadata"]["uid"] for kind in children}

    for kind in children:
        namespace.kubectl("delete", kind, "adder")

    for kind in children:
        eventually(partial(is_another, namespace, kind, before[kind]))
    namespace.until_ready()
    assert predict(namespace) == EXPECTED


def test_object_of_another_owner_is_left_alone_and_named(namespace: Cluster) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "adder"}, "spec": {"ports": [{"port": 80}]}}
    namespace.kubectl("apply", "--filename", "-", text=yaml.safe_dump(service))
    theirs = namespace.get("service", "adder")

    namespace.apply()
    eventually(lambda: namespace.condition("adder").get("reason") == "NameTaken")
    assert "Service adder" in namespace.condition("adder")["message"]
    assert namespace.get("service", "adder") == theirs

    namespace.kubectl("delete", "service", "adder")
    namespace.until_ready()
    assert predict(namespace) == EXPECTED
