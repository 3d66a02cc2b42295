from collections.abc import Callable
from typing import Any

import pytest

from shoal_local.controllers.scheduling import place, pod_requests

Object = dict[str, Any]


def make_node(name: str = "node", **more: Any) -> Object:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "10", **more.pop("allocatable", {})}
    ready = {"type": "Ready", "status": more.pop("ready", "True")}
    return {
        "metadata": {"name": name, "labels": {"zone": name}},
        "spec": more,
        "status": {"allocatable": allocatable, "conditions": [ready]},
    }


def wanting(**limits: str) -> Object:
    names = {name.replace("__", "/").replace("_", "."): value for name, value in limits.items()}
    container = {"name": "main", "image": "a", "resources": {"limits": names}}
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [container]}}


def test_pod_that_requests_too_many_gpus_is_unschedulable() -> None:
    placement = place(wanting(nvidia_com__gpu="2"), [make_node()], [])
    assert placement[1] == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def test_what_running_pods_hold_is_not_free(make_pod: Callable[..., Object]) -> None:
    holder = wanting(nvidia_com__gpu="1")
    holder["spec"]["nodeName"] = "node"
    node = make_node(allocatable={"nvidia.com/gpu": "1"})
    assert place(wanting(nvidia_com__gpu="1"), [node], [])[0] == "node"
    assert "Insufficient nvidia.com/gpu" in place(wanting(nvidia_com__gpu="1"), [node], [holder])[1]
    ended = {**holder, "status": {"phase": "Succeeded"}}
    assert place(wanting(nvidia_com__gpu="1"), [node], [ended])[0] == "node"


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (make_node(unschedulable=True), "node(s) were unschedulable"),
        (
            make_node(taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]),
            "node(s) had untolerated taint(s) {gpu: yes}",
        ),
        (
            make_node(ready="Unknown"),
            "node(s) had untolerated taint(s) {node.kubernetes.io/unreachable: }",
        ),
        (
            make_node(allocatable={"memory": "1Gi", "cpu": "1"}),
            "Insufficient cpu, 1 Insufficient memory",
        ),
        (make_node(allocatable={"pods": "0"}), "Too many pods"),
    ],
)
def test_a_node_that_cannot_take_the_pod_says_why(node: Object, reason: str) -> None:
    placement = place(wanting(cpu="2", memory="2Gi"), [node], [])
    assert placement[1] == f"0/1 nodes are available: 1 {reason}."


def test_a_toleration_lets_the_pod_onto_a_tainted_node() -> None:
    pod = wanting()
    pod["spec"]["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
    node = make_node(taints=[{"key": "gpu", "effect": "NoSchedule"}])
    assert place(pod, [node], [])[0] == "node"


def test_requests_count_sidecars_with_the_containers_and_init_containers_one_by_one() -> None:
    def container(cpu: str, **more: str) -> Object:
        return {"name": cpu, "resources": {"requests": {"cpu": cpu}}, **more}

    pod = {
        "spec": {
            "initContainers": [container("1", restartPolicy="Always"), container("5")],
            "containers": [container("2"), container("500m")],
        }
    }
    assert pod_requests(pod)["cpu"] == 6
