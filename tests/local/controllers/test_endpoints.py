from collections.abc import Callable
from typing import Any

from shoal_local.controllers.changes import Create, Delete, Patch
from shoal_local.controllers.endpoints import make_slices, plan_slices

Object = dict[str, Any]
SERVICE: Object = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default", "uid": "s"},
    "spec": {
        "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
    },
}


def test_ready_pods_are_endpoints_on_the_port_that_their_container_names(
    make_pod: Callable[..., Object],
) -> None:
    (made,) = make_slices(SERVICE, [make_pod("a"), make_pod("b", ready=False, number=2)])
    assert made["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    ready = {e["addresses"][0]: e["conditions"]["ready"] for e in made["endpoints"]}
    assert ready == {"127.0.1.1": True, "127.0.1.2": False}


def test_a_pod_that_goes_serves_on_but_is_not_ready(make_pod: Callable[..., Object]) -> None:
    going = make_pod("a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    (made,) = make_slices(SERVICE, [going])
    conditions = made["endpoints"][0]["conditions"]
    assert conditions == {"ready": False, "serving": True, "terminating": True}


def test_pods_that_ended_or_have_no_address_are_left_out(make_pod: Callable[..., Object]) -> None:
    pods = [make_pod("a", status={"phase": "Succeeded"}), make_pod("b", status={"podIP": ""})]
    (made,) = make_slices(SERVICE, pods)
    assert made["endpoints"] == []


def test_a_plan_creates_changes_and_then_rests(make_pod: Callable[..., Object]) -> None:
    (create,) = plan_slices(SERVICE, [make_pod("a")], []).actions
    assert isinstance(create, Create)
    present = [create.object]
    assert plan_slices(SERVICE, [make_pod("a")], present).actions == []
    (patch,) = plan_slices(SERVICE, [make_pod("a", ready=False)], present).actions
    assert isinstance(patch, Patch)


def test_slices_of_others_are_left_alone() -> None:
    foreign = {"metadata": {"name": "web-x", "labels": {}}}
    plan = plan_slices(SERVICE, [], [foreign])
    assert not any(isinstance(a, Delete) for a in plan.actions)
